"""docs/protocol.md is complete and true: every key, default, event and rule is on it, and its examples work."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from ccfs.certificates.binomial import clopper_pearson_lower
from ccfs.controllers.navigator.pilot import PilotArguments
from ccfs.files.toml import read_toml
from ccfs.protocol.errors import _models_in
from ccfs.protocol.model import Protocol, parse_protocol
from ccfs.protocol.registry import PARTS
from ccfs.protocol.tables import ClaimSpec
from ccfs.runs.build import build_controller, check, resolve

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
PLACE = spec_from_file_location("tables", ROOT / "docs/tables.py")
tables = module_from_spec(PLACE)
PLACE.loader.exec_module(tables)


def section(title: str) -> str:
    """The text below a heading, up to the next one of any level."""
    (found,) = re.findall(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    return found


def rows(title: str, head: str) -> dict[str, list[str]]:
    """The lines of the table with this first heading, by their first cell."""
    (table,) = re.findall(rf"^\| {re.escape(head)} \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", section(title), re.M)
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    return {line[0].strip("| `"): line[1:] for line in cells}


def region(mark: str) -> str:
    """The text between a mark and its end."""
    (found,) = re.findall(rf"^<!-- {re.escape(mark)} -->\n(.*?)^<!-- end -->$", PAGE, re.M | re.S)
    return found


def block(language: str, beginning: str) -> str:
    """The code block that begins so."""
    (found,) = (
        text for text in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S) if beginning in text[:80]
    )
    return found


def models() -> set[type]:
    """Every table that a protocol may hold."""
    found, pending = set(), [Protocol]
    while pending:
        model = pending.pop()
        if model not in found:
            found.add(model)
            pending += [inner for field in model.model_fields.values() for inner in _models_in(field.annotation)]
    return found


def test_page_is_current() -> None:
    for page in (tables.PAGE, tables.FORMATS):
        text = page.read_text(encoding="utf-8")
        assert tables.filled(text) == text, "run `make tables`"


def test_page_has_a_section_for_every_table_of_a_protocol() -> None:
    assert {model.__name__ for model in models()} == set(tables.SECTIONS)
    assert set(re.findall(r"^<!-- parts: ([\w ]+) -->$", PAGE, re.M)) == set(PARTS)


@pytest.mark.parametrize("model", sorted(models(), key=lambda model: model.__name__))
def test_page_lists_exactly_the_keys_of_a_table(model: type) -> None:
    listed = rows(tables.SECTIONS[model.__name__], "key")
    assert listed.keys() == model.model_fields.keys()
    for key, (_, default, meaning) in listed.items():
        field = model.model_fields[key]
        assert (default == "required") == field.is_required(), key
        if isinstance(field.default, (bool, int, float, str)):
            assert default == f"`{json.dumps(field.default)}`", key
        assert len(meaning.strip(" |")) > 5, key


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in PARTS.items() for name in table])
def test_page_lists_every_part_with_arguments_that_it_takes(kind: str, name: str) -> None:
    part = PARTS[kind][name]
    (line,) = re.findall(rf"^\| `{name}` \| ([^|]*) \| ([^|]*) \|$", region(f"parts: {kind}"), re.M)
    assert (re.findall(r"`(\w+)`", line[0]), line[1]) == (list(part.arguments), part.does)
    parameters = inspect.signature(resolve("part", part.target)).parameters.values()
    taken = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    required = {parameter.name for parameter in parameters if parameter.default is parameter.empty} & taken
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) and not taken:
        taken = set(PilotArguments.__annotations__)  # the guard and its fallback share one set of settings
    assert required - {"events"} <= set(part.arguments) <= taken


def test_page_lists_every_bound_with_the_trials_that_it_goes_with() -> None:
    listed = {name.strip('"'): cells[0].strip("`") for name, cells in rows("`[claim]`", "`bound`").items()}
    bounds = set(ClaimSpec.model_fields["bound"].annotation.__args__)
    assert listed.keys() == bounds
    trials = {"cohort": {"first": 0, "count": 9}, "initial_law": 9}
    plain = read_toml(block("toml", 'name = "pendulum"'))
    for bound, kind in listed.items():
        given = {kind: trials[kind]} if kind != "draws" else {"initial_law": 9, "draws": {"main": 4}}
        content = {**plain, "trials": given, "claim": {**plain["claim"], "bound": bound}}
        assert parse_protocol(content, where="page").claim.bound == bound


def test_page_names_no_module_path_of_ours_as_a_part() -> None:
    assert not re.findall(r"\bccfs\.[\w.]+:[\w.]*\w", PAGE)


def test_page_links_to_headings_that_exist() -> None:
    headings = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^##+ (.*)$", PAGE, re.M)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings


def test_page_states_the_least_number_of_trials() -> None:
    (number,) = re.findall(r"at `delta = 0\.001` and `target = 0\.9` needs (\d+) trials", PAGE)
    assert clopper_pearson_lower(int(number), int(number), delta=0.001) >= 0.9
    assert clopper_pearson_lower(int(number) - 1, int(number) - 1, delta=0.001) < 0.9


def test_page_fragments_are_toml_that_a_protocol_takes() -> None:
    whole = read_toml(block("toml", 'name = "pendulum"'))
    for beginning in ("[trials]\ncohort", 'event = "all-of"', "[claim]\ndelta"):
        content = {**whole, **read_toml(block("toml", beginning))}
        if beginning.startswith("[trials]"):
            content["claim"] = {**content["claim"], "bound": "cohort"}
        parse_protocol(content, where="page")


def test_page_example_of_an_own_environment_runs_certifies_and_replays(tmp_path: Path) -> None:
    (tmp_path / "walker.py").write_text(block("python", '"""A dot walks'), encoding="utf-8")
    (tmp_path / "walker.toml").write_text(block("toml", 'name = "walker"'), encoding="utf-8")
    # Without the working directory on the path, as the installed command is (Python 3.11 and later).
    env = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, "PYTHONSAFEPATH": "1"}
    (elsewhere := tmp_path / "elsewhere").mkdir()

    def ccfs(*arguments: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ccfs", *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)

    assert "ccfs run walker.toml -o RUN\nccfs audit RUN --modules . --trust\n" in PAGE
    made = ccfs("run", "walker.toml", "-o", "RUN", "--workers", "2")
    assert made.returncode == 0, made.stderr
    assert len(re.findall(r"past/two .* 0\.8 │ 0\.\d{4}", made.stdout)) == 2
    assert made.stdout.endswith("Next: ccfs show RUN, ccfs report RUN, ccfs audit RUN --modules . --trust\n")
    (digest,) = re.findall(r'`events.1` is code of your own. The hash covers it with: digest = "(\w+)"', made.stderr)
    assert f'event = "walker:FewFallbacks"\narguments = {{ most = 3 }}\ndigest = "{digest}"' in PAGE
    trusted = ("--modules", "..", "--trust")
    for command in (("audit", "--replay", "4", *trusted), ("table",), ("certify", *trusted), ("report",)):
        told = ccfs(command[0], "../RUN", *command[1:], cwd=elsewhere)
        assert told.returncode == 0, told.stderr
    if sys.version_info >= (3, 11):
        lost = ccfs("certify", "../RUN", "--trust", cwd=elsewhere)
        assert lost.returncode == 2
        advice = "Put 'walker' beside the protocol file, or give its folder with --modules, or install it.\n"
        assert lost.stderr.endswith(f"No module named 'walker'. {advice}")
    careful = ccfs("audit", "RUN", "--replay", "4")
    assert (careful.returncode, "NOT CHECKED" in careful.stdout) == (3, True), careful.stderr
    assert ccfs("verify", "RUN/certificates/past/two/arrives.json", "--run", "RUN").returncode == 0
    own = ("verify", "RUN/certificates/past/two/few-fallbacks.json", "--run", "RUN")
    refused = ccfs(*own)
    assert (refused.returncode, "code that the run names" in refused.stderr) == (2, True)
    accepted = ccfs(*own, "--modules", ".", "--trust")
    assert accepted.returncode == 0, accepted.stderr


def test_page_example_of_an_sb3_model_is_made_with_and_without_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gymnasium
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    monkeypatch.chdir(tmp_path)
    model = PPO("MlpPolicy", "Pendulum-v1", seed=3, device="cpu")
    model.save("ppo.zip")
    whole = read_toml(block("toml", 'name = "pendulum"'))
    plain = check(parse_protocol(whole, where="page"), where="page")
    normalised = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    normalised.reset()
    normalised.save("vecnormalize.pkl")
    (frozen,) = re.findall(r"^```toml\n(\[\[controllers\]\][^`]*vecnormalize.pkl[^`]*)^```$", PAGE, re.M)
    again = check(parse_protocol({**whole, **read_toml(frozen)}, where="page"), where="page")
    assert plain.keys() == again.keys() == {"ppo"}
    assert plain["ppo"] != again["ppo"]


def test_page_example_of_omnisafe_and_zoo_agents_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs/PPOLag/seed-000"
    (folder / "torch_save").mkdir(parents=True)
    settings = {
        "model_cfgs": {"actor_type": "gaussian_learning", "actor": {"activation": "tanh"}},
        "algo_cfgs": {"obs_normalize": False},
    }
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    weights = {"mean.0.weight": torch.zeros(2, 60), "mean.0.bias": torch.zeros(2)}
    torch.save({"pi": weights}, folder / "torch_save/epoch-500.pt")
    goal2 = read_toml((ROOT / "experiments/goal2/protocol.toml").read_text(encoding="utf-8"))
    fragment = read_toml(block("toml", '[environment]\nmake = "safety-gymnasium"'))
    protocol = parse_protocol({**goal2, **fragment}, where="page")
    made = {arm.controller.name: build_controller(protocol, arm) for arm in protocol.arms}
    assert made.keys() == {"mine", "shipped"}
