"""Change the files that our commands read, thousands of times, and look what the commands do.

    python experiments/fuzzing/run.py --seed 21 --minutes 10 --out experiments/fuzzing/summary.json

Each seed gives other changes. A call adds its seed to the file that `--out` names.

A case is good if the command refuses the file in one line, or accepts it and is right. It is bad if there is a
traceback, if it takes more than ten seconds, if the process grows beyond one gigabyte, or if a changed file is accepted
as if it were whole. Half of the changed runs get new hashes everywhere, as a forger would write them.
"""

from __future__ import annotations

import gc
import json
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import mutations  # noqa: E402
from _shared.commands import parse, spelled  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from ccfs.certificates.bounds import Bound  # noqa: E402
from ccfs.certificates.trajectory import certify_event  # noqa: E402
from ccfs.cli.demo import TEXT  # noqa: E402
from ccfs.cli.main import app  # noqa: E402
from ccfs.files.atomic import write_atomically  # noqa: E402
from ccfs.files.parquet import read_parquet  # noqa: E402
from ccfs.files.terminal import printable  # noqa: E402
from ccfs.protocol.model import ProtocolError, load_protocol, parse_protocol  # noqa: E402
from ccfs.results.certificate import RunCertificate  # noqa: E402
from ccfs.runs.batches import plan  # noqa: E402
from ccfs.runs.journal import Journal  # noqa: E402
from ccfs.runs.manifest import ATTESTATION, MANIFEST, SIGNATURE, UNLISTED, Manifest, _digest  # noqa: E402
from ccfs.runs.registration import REGISTRATION  # noqa: E402
from ccfs.runs.store import Store  # noqa: E402

SECONDS = 10
GIGABYTE = 1 << 20  # in kilobytes
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", re.ASCII)
# A replay alone can tell whether these are true, or nobody derives anything from them. An audit says so in a note.
QUOTED = ("provenance.json", "report.html")


def peak_kilobytes() -> int:
    """Return the greatest memory of this process. `getrusage` would also count what its parent had when it began."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What to run."""

    seed: int = field(default=1, metadata={"help": "seed of the changes"})
    minutes: float = field(default=1.0, metadata={"help": "how long to go on, in processor time"})
    cases: int = field(default=1_000_000, metadata={"help": "greatest number of cases"})
    out: str = field(default="", metadata={"help": "where to write the summary"})
    sabotage: bool = field(default=False, metadata={"help": "break a check, to see that it is found"})


class Clock(Exception):  # noqa: N818
    """A case took too long."""


@dataclass(slots=True)
class Ledger:
    """What happened so far."""

    cases: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    bad: list[dict[str, object]] = field(default_factory=list)
    slowest: float = 0.0

    def add(self, kind: str, number: int, seconds: float, verdict: str) -> None:
        """Add a case. A verdict is "refused", "accepted", or says what is bad."""
        self.cases[kind] += 1
        self.refused[kind] += verdict == "refused"
        self.slowest = max(self.slowest, seconds)
        if verdict not in ("refused", "accepted"):
            self.bad.append({"kind": kind, "case": number, "seconds": round(seconds, 2), "what": verdict[:500]})


def called(*words: object) -> tuple[int, str]:
    """Call a command and return its exit code and output. A traceback is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    shown = result.output.replace("\n", "")
    if printable(shown) != shown:
        raise AssertionError(f"a hidden character was printed: {shown!r}")
    return result.exit_code, result.output


def protocols(rng: random.Random, folder: Path) -> str:
    """A protocol file. Nothing of it is run, because it is the user's own."""
    path = folder / "p.toml"
    change = rng.choice((mutations.toml, mutations.toml, mutations.bytes_of))
    path.write_bytes(change(rng, TEXT.encode()))
    try:
        made = load_protocol(path)
    except ProtocolError as error:
        is_named = all(line.startswith(str(path)) for line in error.lines)
        return "refused" if is_named else f"traceback: {error}"
    names = [part.name for key in ("controllers", "schedules", "events", "attacks") for part in getattr(made, key)]
    assert all(NAME.fullmatch(name) for name in names), names
    return "accepted"


def certificates(rng: random.Random, folder: Path) -> str:
    """A certificate alone. An accepted one must say what its counts give, and nothing else."""
    path = folder / "c.json"
    original = rng.choice(CERTIFICATES)
    change = rng.choice((mutations.json_of, mutations.json_of, mutations.bytes_of))
    path.write_bytes(change(rng, original))
    code, _ = called("verify", path)
    if code:
        return "refused"
    document = RunCertificate.from_bytes(path.read_bytes(), where="c")
    claim = document.claim
    proof = document.trajectory
    again = certify_event(
        claim.successes, claim.trials, delta=claim.delta, family=claim.family, target=claim.target,
        schedule=proof.schedule, bound=Bound(claim.bound), event=claim.event,
    )  # fmt: skip
    told = (proof.p_lower, proof.mu, proof.budget)
    is_true = told == (again.p_lower, again.mu, again.budget) and claim.successes <= claim.trials
    are_names = all(NAME.fullmatch(part) for part in (*document.arm.split("/"), document.event))
    return "accepted" if is_true and are_names else f"wrong accept: {path.read_bytes()!r}"


def runs(rng: random.Random, folder: Path) -> str:
    """A file of a run, with the old hashes or with new ones everywhere."""
    root = folder / "run"
    shutil.copytree(RUN, root)
    names = sorted(name for name in Store(root).files() if name != MANIFEST)
    name = rng.choice([*names, MANIFEST, "protocol.json", "provenance.json"])
    before = (root / name).read_bytes()
    changes = {".json": mutations.json_of, ".parquet": mutations.table}
    change = rng.choice((changes.get(Path(name).suffix, mutations.bytes_of), mutations.bytes_of))
    (root / name).write_bytes(change(rng, before))
    is_resealed = rng.random() < 0.5 and name != MANIFEST
    if is_resealed:
        reseal(root)
    after = (root / name).read_bytes()
    is_changed = after != before and not (is_resealed and says_the_same(name, before, after))  # a seal mends a journal
    command = rng.choice(("audit", "audit", "verify", "certify", "table", "costs", "report"))
    certificate = root / "certificates" / "steering" / "one" / "passes.json"
    words = {
        "audit": ("audit", root, "--replay", 0 if rng.random() < 0.97 else 1),
        "verify": ("verify", certificate, "--run", root),
    }.get(command, (command, root))
    code, output = called(*words)
    if is_changed and code != 2 and is_wrong(command, code, name, is_resealed=is_resealed):
        return f"wrong accept by {command} of {name}: {output}"
    return "refused" if code else "accepted"


def says_the_same(name: str, before: bytes, after: bytes) -> bool:
    """Return whether two files are the same table, or the same protocol, in other bytes."""
    try:
        if name == "protocol.json":  # a key with its default value may be left out
            made = [parse_protocol(json.loads(content), where=name) for content in (before, after)]
            return made[0].hash == made[1].hash
        tables = [read_parquet(content) for content in (before, after)] if name.endswith(".parquet") else []
    except (ValueError, RecursionError):
        return False
    return bool(tables) and bool(tables[0].equals(tables[1], check_metadata=True))


def signed_runs(rng: random.Random, folder: Path) -> str:
    """A file of a run that is registered, signed and without traces. With --signer every change must be found."""
    root = folder / "run"
    shutil.copytree(SIGNED / "run", root)
    name = rng.choice([*sorted(Store(root).files()), SIGNATURE, ATTESTATION, REGISTRATION])
    before = (root / name).read_bytes()
    changes = {".json": mutations.json_of, ".parquet": mutations.table, ".jsonl": mutations.json_of}
    change = rng.choice((changes.get(Path(name).suffix, mutations.bytes_of), mutations.bytes_of))
    (root / name).write_bytes(change(rng, before))
    if rng.random() < 0.5 and name != MANIFEST:
        reseal(root)
    after = (root / name).read_bytes()
    command = rng.choice(("audit", "verify", "verify", "certify", "sign"))
    certificate = root / "certificates" / "steering" / "one" / "passes.json"
    words = {
        "audit": ("audit", root, "--replay", 0),
        "verify": ("verify", certificate, "--run", root, "--signer", SIGNED / "key.pub"),
        "sign": ("sign", root, "--key", SIGNED / "key"),
    }.get(command, (command, root))
    code, output = called(*words)
    # Line breaks in the armour of a signature are nobody's statement.
    is_changed = after != before and (name != SIGNATURE or after.split() != before.split())
    if is_changed and code == 0 and command in ("audit", "verify"):
        return f"wrong accept by {command} of {name}: {output}"
    return "refused" if code else "accepted"


def is_wrong(command: str, code: int, name: str, *, is_resealed: bool) -> bool:
    """Return whether a command must not take a run with this changed file for whole."""
    if command == "audit":
        return code == 0 and not (is_resealed and name in QUOTED)
    if command == "verify":
        # What the certificate of this arm is derived from. Files of other arms and attacks are not its business.
        parts = (
            "traces/steering/one/nominal",
            "trajectories/steering/one/nominal",
            "protocol",
            "certificates/steering/one",
        )
        return code == 0 and (not is_resealed or name.startswith(parts))
    return not is_resealed and name != "report.html"


def reseal(root: Path) -> None:
    """Write journals and manifest anew, as far as they can be written."""
    store = Store(root)
    try:
        made = store.protocol()
        for arm in made.arms:
            for attack in (None, *made.attacks):
                for batch in plan(made, arm, attack):
                    if all(store.exists(name) for name in batch.files):
                        files = {name: store.digest(name) for name in batch.files}
                        store.write(batch.journal, Journal(trials=batch.trials, files=files).to_bytes())
        digest = made.hash
    except (RuntimeError, ValueError):
        digest = "0" * 64
    files = {name: store.digest(name) for name in store.files() if name not in UNLISTED}
    store.write(MANIFEST, Manifest(protocol=digest, files=files, digest=_digest(digest, files)).to_bytes())


def zoo_entries(rng: random.Random, folder: Path) -> str:
    """A controller with its card. An accepted one has the weights that its card names."""
    from ccfs.controllers import zoo

    for name in ("card.json", "actor.npz"):
        shutil.copy(ZOO / name, folder / name)
    name = rng.choice(("card.json", "actor.npz"))
    content = (folder / name).read_bytes()
    changes = (mutations.json_of, mutations.bytes_of) if name == "card.json" else (mutations.arrays, mutations.bytes_of)
    changed = rng.choice(changes)(rng, content)
    (folder / name).write_bytes(changed)
    if name == "actor.npz" and rng.random() < 0.7:  # with the new hash on the card
        import hashlib

        card = json.loads((folder / "card.json").read_bytes())
        card["actor_sha256"] = hashlib.sha256(changed).hexdigest()
        (folder / "card.json").write_text(json.dumps(card))
    try:
        entry = zoo.load(folder)
    except ValueError:
        return "refused"
    return "accepted" if entry.actor.digest == ORIGINAL.digest else "wrong accept: other weights under the same digest"


def image_counts(rng: random.Random, folder: Path) -> str:
    """The counts of an image run. Accepted ones must carry no more than their filter proves."""
    from ccfs.images.counts import RecordError, read_counts

    path = folder / "counts.parquet"
    path.write_bytes(rng.choice((mutations.table, mutations.bytes_of))(rng, COUNTS))
    try:
        found = read_counts(path)
    except RecordError:
        return "refused"
    return (
        "accepted" if found.proof is None or found.proof.covariance_ratio >= 1.0 else "wrong accept: a better premise"
    )


def image_runs(rng: random.Random, folder: Path) -> str:
    """The description of an image run."""
    from ccfs.images.folder import read_run

    (folder / "run.json").write_bytes(rng.choice((mutations.json_of, mutations.bytes_of))(rng, IMAGE_RUN))
    try:
        found = read_run(folder)
    except ValueError:
        return "refused"
    network = None if found.asked is None else found.asked.network
    return "accepted" if network is None or NAME.fullmatch(network) else "wrong accept: no name"


def image_certificates(rng: random.Random, folder: Path) -> str:
    """A certificate of images. An accepted one must say what its counts give."""
    from ccfs.certificates.images import Rule
    from ccfs.images.certificate import ImageCertificate, _dense, _digest, derived
    from ccfs.images.counts import CountRow, CountTable

    path = folder / "c.json"
    path.write_bytes(rng.choice((mutations.json_of, mutations.json_of, mutations.bytes_of))(rng, IMAGE_CERTIFICATE))
    if rng.random() < 0.5:  # with a new digest, as a forger would write it
        try:
            made = ImageCertificate.from_bytes(path.read_bytes(), where="c")
            path.write_bytes(made.model_copy(update={"digest": _digest(made)}).to_bytes())
        except ValueError:
            pass
    code, _ = called("verify", path)
    if code:
        return "refused"
    found = ImageCertificate.from_bytes(path.read_bytes(), where="c")
    rows = tuple(
        CountRow(
            index=claim.index, label=claim.label, variant=found.variant,
            selection=_dense(claim.selection, claim.selection_rejected, found.key.num_classes),
            estimation=_dense(claim.estimation, claim.estimation_rejected, found.key.num_classes),
        )
        for claim in found.claims
    )  # fmt: skip
    rule = next(rule for rule in Rule if rule.value == found.rule)
    again = derived(CountTable(key=found.key, rows=rows), found.variant, rule, delta=found.delta)
    is_true = [claim.radius for claim in again.claims] == [claim.radius for claim in found.claims]
    is_proved = found.key.proof is None or found.key.proof.covariance_ratio >= 1.0
    return "accepted" if is_true and is_proved else "wrong accept: radii that do not follow"


KINDS: tuple[tuple[Callable[[random.Random, Path], str], int], ...] = (
    (protocols, 4), (certificates, 4), (runs, 8), (signed_runs, 4), (zoo_entries, 2), (image_counts, 2),
    (image_runs, 1), (image_certificates, 2),
)  # fmt: skip


def judged(kind: Callable[[random.Random, Path], str], rng: random.Random) -> tuple[float, str]:
    """Do one case, and return its seconds and its verdict."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        signal.alarm(SECONDS)
        try:
            verdict = kind(rng, Path(folder))
        except Clock:
            verdict = "hang"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            verdict = f"traceback: {type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
    return time.perf_counter() - begun, verdict


def cases(seed: int, ledger: Ledger) -> Iterator[None]:
    """Do one case after the other, and write down what happened."""
    kinds = [kind for kind, weight in KINDS for _ in range(weight)]
    number = 0
    while True:
        number += 1
        rng = random.Random(f"{seed} {number}")
        kind = rng.choice(kinds)
        seconds, verdict = judged(kind, rng)
        if verdict == "hang":  # once more, because a busy machine can make one case late
            rng = random.Random(f"{seed} {number}")
            rng.choice(kinds)
            seconds, verdict = judged(kind, rng)
        ledger.add(kind.__name__, number, seconds, verdict)
        if peak_kilobytes() > GIGABYTE:
            ledger.add(kind.__name__, number, 0.0, "the process has grown beyond one gigabyte")
            return
        if number % 50 == 0:
            gc.collect()
        yield


def prepare(folder: Path) -> None:
    """Make what is going to be changed."""
    global RUN, SIGNED, CERTIFICATES, ZOO, ORIGINAL, COUNTS, IMAGE_RUN, IMAGE_CERTIFICATE
    from ccfs.certificates.images import LabelCounts, Rule
    from ccfs.controllers import zoo
    from ccfs.images.certificate import derived
    from ccfs.images.counts import CountRow, CountTable, RunKey, write_counts
    from ccfs.images.folder import Asked, ImageRun

    text = re.sub(r"initial_law = \d+", "initial_law = 24", TEXT).replace("batch = 50", "batch = 12")
    text = text.replace("target = 0.9", "target = 0.5").replace("delta = 0.001", "delta = 0.05")
    (folder / "p.toml").write_text(text[: text.index('[[attacks]]\nname = "opposed"')])
    code, output = called("run", folder / "p.toml", "-o", folder / "run", "--workers", 1)
    assert code == 0, output
    assert called("report", folder / "run")[0] == 0
    RUN = folder / "run"
    CERTIFICATES = [path.read_bytes() for path in sorted(RUN.glob("certificates/**/*.json"))]
    SIGNED = folder / "signed"
    prepare_signed(SIGNED, text[: text.index("[[attacks]]")].replace("batch = 12", 'batch = 12\ntraces = "hashes"'))
    CERTIFICATES.append((SIGNED / "run" / "certificates" / "steering" / "one" / "passes.json").read_bytes())
    ZOO = Path(zoo.__file__).parent / "zoo" / zoo.names()[0]
    ORIGINAL = zoo.load(zoo.names()[0]).actor
    key = RunKey(
        dataset="mnist", dataset_sha256="0" * 64, model_sha256="1" * 64, filter={"kind": "none"}, variants=("none",),
        proof={"covariance_ratio": 1.0, "statement": "x", "ball": "infinity"}, sigma=0.5, num_classes=3,
        selection_trials=10, estimation_trials=20, seed=0, stream="",
    )  # fmt: skip
    rows = tuple(
        CountRow(
            index=index, label=0, variant="none", selection=LabelCounts(retained=(8, 1, 1), rejected=0),
            estimation=LabelCounts(retained=(18, 1, 1), rejected=0),
        )
        for index in range(20)
    )  # fmt: skip
    table = CountTable(key=key, rows=rows)
    write_counts(folder / "counts.parquet", table)
    COUNTS = (folder / "counts.parquet").read_bytes()
    asked = Asked(dataset="mnist", network="mnist-small-sigma1", sigma=0.5)
    IMAGE_RUN = ImageRun(key=key, images=((0, 20),), asked=asked).to_bytes()
    IMAGE_CERTIFICATE = derived(table, "none", Rule.UNFILTERED, delta=0.01).to_bytes()


def prepare_signed(folder: Path, text: str) -> None:
    """Make a run with every signature that there is, by a new key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    folder.mkdir()
    key, kinds = Ed25519PrivateKey.generate(), serialization
    private = (kinds.Encoding.PEM, kinds.PrivateFormat.OpenSSH, kinds.NoEncryption())
    (folder / "key").write_bytes(key.private_bytes(*private))
    (folder / "key.pub").write_bytes(key.public_key().public_bytes(kinds.Encoding.OpenSSH, kinds.PublicFormat.OpenSSH))
    (folder / "p.toml").write_text(text)
    record = folder / "record"
    for words in (
        ("register", folder / "p.toml", "--key", folder / "key", "-o", record),
        ("run", folder / "p.toml", "-o", folder / "run", "--workers", 1, "--registration", record),
        ("sign", folder / "run", "--key", folder / "key"),
    ):
        code, output = called(*words)
        assert code == 0, output


def main(arguments: Arguments) -> dict[str, object]:
    """Go on until the time is over, and return the summary."""

    def late(number: int, frame: object) -> None:
        raise Clock

    signal.signal(signal.SIGALRM, late)
    ledger = Ledger()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        if arguments.sabotage:
            from ccfs.audit import run

            run.manifest_faults = lambda store: []
            run.batch_faults = lambda *given: iter(())
            run._check_certificates = lambda *given: None
        end = time.process_time() + 60.0 * arguments.minutes
        for _ in cases(arguments.seed, ledger):
            if time.process_time() > end or sum(ledger.cases.values()) >= arguments.cases:
                break
    found = Counter(str(item["what"]).partition(":")[0].partition(" by ")[0] for item in ledger.bad)
    return {
        "processor_minutes": round(time.process_time() / 60.0, 1),
        "cases": sum(ledger.cases.values()),
        "by_kind": dict(sorted(ledger.cases.items())),
        "refused": dict(sorted(ledger.refused.items())),
        "tracebacks": found["traceback"],
        "hangs": found["hang"],
        "wrong_accepts": found["wrong accept"],
        "beyond_one_gigabyte": found["the process has grown beyond one gigabyte"],
        "slowest_seconds": round(ledger.slowest, 1),
        "peak_megabytes": peak_kilobytes() // 1024,
        "bad": ledger.bad[:50],
    }


def add_to(path: Path, piece: dict[str, object]) -> None:
    """Add what one seed gave to the stored summary. The same seed again replaces it."""
    pieces = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    pieces = [each for each in pieces if each["seed"] != piece["seed"]] + [piece]
    pieces.sort(key=lambda each: each["seed"])
    write_atomically(path, (json.dumps(pieces, indent=2) + "\n").encode())


if __name__ == "__main__":
    given = parse(Arguments, __doc__ or "")
    piece = {"command": spelled("experiments/fuzzing/run.py", given), "seed": given.seed, **main(given)}
    if given.out:
        add_to(Path(given.out), piece)
    print(json.dumps(piece, indent=2))
    sys.exit(bool(piece["bad"]))
