from __future__ import annotations

import json

import pytest
from toy_protocol import protocol, text

from ccfs.certificates.schedule import ProposalSchedule, Schedule
from ccfs.protocol.model import ProtocolError, load_protocol, parse_protocol
from ccfs.runs.build import build_arm, check
from ccfs.runtime.streams import Purpose


def refused(folder, message, trials=10, **replaced):
    path = folder / "p.toml"
    path.write_text(text(trials, **replaced))
    with pytest.raises(ProtocolError, match=message) as caught:
        check(load_protocol(path), where=str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed = 7", "sead = 7\nseed = 7", r"unknown key `sead`, got 7\. Accepted here: .*batch, claim"),
        (
            "delta = 0.05",
            "delta = 0.05\nalpha = 0.1",
            r"unknown key `claim\.alpha`, got 0\.1\. Accepted here: bound, delta",
        ),
        (
            "count = 1, sigma",
            "cuont = 2, count = 1, sigma",
            r"unknown key `schedules\.0\.action\.cuont`, got 2\. Acc.*sigma",
        ),
        ("seed = 7", "", r"key `seed` is missing"),
        ("seed = 7", 'seed = "7"', r"`seed`: input should be a valid integer, got '7'"),
        ("seed = 7", "seed = -7", r"`seed`: input should be greater than or equal to 0, got -7"),
        ("seed = 7", "", r"is missing\..* What it is: Root of all random streams\.$"),
        # Whoever writes a confidence here would get a claim that is nearly always wrong.
        (
            "delta = 0.05",
            "delta = 0.95",
            r"`claim\.delta`: .* less than 0\.5, got 0\.95\. What it is: .* 0\.001 for",
        ),
        (
            "target = 0.5",
            "target = 95",
            r"`claim\.target`: .* less than 1, got 95\. What it is: .*, such as 0\.95 for",
        ),
        ("delta = 0.05", "delta = nan", r"`claim\.delta`: .*finite"),
        ("target = 0.5", "target = true", r"`claim\.target`: input should be a valid number, got True"),
        ("sigma = 0.2 }", "sigma = -0.2 }", r"`schedules\.0\.action\.sigma`: .* be greater than 0, got -0\.2"),
        ("sigma = 0.2 }", "sigma = 0.2, rho = 0.5 }", r"`schedules\.0\.action`: `rho` must be 0 for a single proposal"),
        ("multiplier = 1.05", "multiplier = 5.0", r"`schedules\.1\.action`: `multiplier` must be in \(1, 4\] for 4"),
        ("multiplier = 1.05", "multiplier = 1.05, rho = 0.1", r"`rho` must not be given beside `multiplier`"),
        ('bound = "cohort"', 'bound = "bayes"', r"`claim\.bound`: .*'hoeffding', 'cohort'.* got 'bayes'"),
        (
            'bound = "cohort"',
            'bound = "clopper-pearson"',
            r"must be 'hoeffding' or 'cohort' for a fixed cohort, got 'clopper",
        ),
        ('bound = "cohort"', 'bound = "cohort"\nstop_at_budget = 0.1', r"`stop_at_budget` needs bound = 'anytime'"),
        ('bound = "cohort"', 'bound = "cohort"\nfamily = 1', r"`claim\.family` must be at least 2 .* got 1"),
        ("cohort = { first = 100, count = 10 }", "cohort = [1, 1]", r"none twice"),
        ("cohort = { first = 100, count = 10 }", "cohort = [4294967296]", r"less than 4294967296, got 4294967296"),
        (
            "cohort = { first = 100, count = 10 }",
            "cohort = [1]\nused_before = [1]",
            r"`trials`: `cohort` must be disjoint from `used_before`, both hold 1\.",
        ),
        (
            "count = 10 }",
            "count = 10 }\nused_before = [17, { first = 2147483648, count = 2147483648 }, { first = 0, count = 101 }]",
            r"disjoint from `used_before`, both hold 100\.",
        ),
        (
            "count = 10 }",
            "count = 10 }\nused_before = [101, { first = 106, count = 2 }, 103, { first = 107, count = 4294967189 }]",
            r"disjoint from `used_before`, both hold 101, 103, 106 to 109\.",
        ),
        (
            "cohort = { first = 100, count = 10 }",
            "cohort = [9, 7, 5, 3, 1, 11, 13]\nused_before = [{ first = 0, count = 4294967296 }]",
            r"both hold 1, 3, 5, 7, 9 and 2 more\.",
        ),
        ("count = 10 }", "count = 10 }\nused_before = [-1]", r"`trials\.used_before\.0`: .*equal to 0, got -1"),
        ("count = 10 }", "count = 10 }\nused_before = [1, true]", r"`trials\.used_before\.1`: .*integer, got True"),
        (
            "count = 10 }",
            "count = 10 }\nused_before = [{ first = 1, count = 4294967296 }]",
            r"`trials\.used_before\.0\.count`: `first` \+ `count` must be at most 4294967296, got 1 \+ 4294967296",
        ),
        (
            "count = 10 }",
            "count = 10 }\nused_before = [{ first = 1, count = 1, last = 5 }]",
            r"unknown key `trials\.used_before\.0\.last`, got 5\. Accepted here: count, first",
        ),
        ("cohort = { first = 100, count = 10 }", "initial_law = 1000001", r"`trials\.initial_law`: .*equal to 1000000"),
        ("first = 100, count = 10", "first = 4294967290, count = 10", r"`first` \+ `count` must be at most 4294967296"),
        ("count = 10 }", "count = 1000001 }", r"`trials\.cohort\.count`: .*less than or equal to 1000000, got 1000001"),
        ("count = 10 }", "count = 1000000000000 }", r"`trials\.cohort\.count`: .*less than or equal to 1000000"),
        (
            '"no-cost-until-goal"',
            '"no-abstention"\nevents = [{ name = "x", event = "goal-before-cost" }]',
            r"`events\.0`: `events` must be given for event = 'all-of' only, got event = 'no-abstention'",
        ),
        (
            '"no-cost-until-goal"',
            '"all-of"\narguments = { horizon = 2 }\nevents = [{ name = "x", event = "no-abstention" }]',
            r"`events\.0`: `arguments` must be given to the `events` of an all-of, got \{'horizon': 2\}",
        ),
        (
            '"no-cost-until-goal"',
            '"all-of"\nevents = [{ name = "x", event = "nonsense" }]',
            r"`events\.0\.events\.0\.event`: must be one of no-cost-until-goal, .* got 'nonsense'",
        ),
        ("seed = 7", 'seed = 7\nquick_look_of = "x"', r"`quick_look_of`: string should match pattern"),
        ("cohort = { first = 100, count = 10 }", "cohort = [1]\ninitial_law = 3", r"give `cohort` .* or `initial_law`"),
        ('name = "four"', 'name = "one"', r"`schedules` must have different names"),
        ('name = "four"', 'name = "ONE"', r"`schedules` must have different names, also in lower case"),
        ('name = "four"', 'name = "../four"', r"`schedules\.1\.name`: string should match pattern .* got '\.\./four'"),
        ("no-cost-until-goal", "no_cost", r"`events\.0\.event`: must be one of no-cost-until-goal, .* got 'no_cost'"),
        (
            '"no-cost-until-goal"',
            '"no-cost-until-goal"\narguments = { horizon = 7 }',
            r"`events\.0\.arguments\.horizon` must be in \[1, 6\], the protocol's horizon, got 7",
        ),
        (
            '"no-cost-until-goal"',
            '"cost-at-most"',
            r"`events\.0\.arguments` were not accepted, got \{'horizon': 6\}: .*limit",
        ),
        ('rule = "constant"', 'rule = "push"', r"`attacks\.0\.rule`: must be one of none, opposed, .* got 'push'"),
        ("budget = 0.1", "", r"give `budget` or `energy`"),
        ("budget = 0.1", "budget = 0.1\nenergy = 0.1", r"give `budget` or `energy`"),
        ('name = "push"', 'name = "nominal"', r"'nominal' is for trials without shift"),
        ("gain = 0.2", "gain = nan", r"`controllers\.0\.arguments`: `gain` must be finite, got nan"),
        ("high = [0.5]", "high = [inf]", r"`program\.verifier\.arguments`: `high\.0` must be finite, got inf"),
        ("post = 0.6", "post = { at = [-inf] }", r"`environment\.arguments`: `post\.at\.0` must be finite, got -inf"),
        ("direction = [1.0]", "direction = [nan]", r"`attacks\.0\.arguments`: `direction\.0` must be finite, got nan"),
        ("direction = [1.0]", "direction = [0.0]", r"`attacks\.0\.arguments` were not accepted, got .*`direction`"),
        (
            '"steering"',
            '"toys:Steering"',
            r"`controllers\.0\.make` must name something that can be imported",
        ),
        (
            'steering"\narguments = { gain = 0.2 }',
            'toys:AcceptAll"',
            r"`controllers\.0\.make` must give a policy, got AcceptAll",
        ),
        ('"steering"', '"corridor.make"', r"`controllers\.0\.make`: must be one of zoo, .* got 'corridor\.make'\."),
        ('"steering"', '"toys: Push"', r"`controllers\.0\.make`: must be one of zoo, .* got 'toys: Push'\."),
        (
            '"no-cost-until-goal"',
            '"no_cost_until_goal"',
            r"`events\.0\.event`: must be one of .* Names have dashes: write 'no-cost-until-goal'\.",
        ),
        ('"box"', '"lidar_box"', r"`program\.verifier\.make`: .* Names have dashes: write 'lidar-box'\."),
        ("gain = 0.2", "gian = 0.2", r"`controllers\.0\.arguments` were not accepted, got \{'gian': 0\.2\}: TypeError"),
        ("low = [-0.5]", "low = [1.5]", r"`program\.verifier\.arguments` were not accepted"),
    ],
)
def test_protocol_refuses_in_one_line(tmp_path, old, new, message):
    refused(tmp_path, message, x=(old, new))


ENVIRONMENT = 'make = "corridor"\narguments = { horizon = 6, post = 0.6 }'


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        ('toys:limited"\narguments = { steps = 5 }', 5),
        ('toys:limited"\narguments = { steps = 5, outer = 9 }', 5),
        ('toys:limited"\narguments = { steps = 9, outer = 5 }', 5),
        ('toys:registered"\narguments = { steps = 5 }', 5),
        ('toys:limited"\narguments = { steps = 6 }', None),
        ('toys:registered"\narguments = { steps = 6 }', None),
    ],
)
def test_protocol_horizon_beyond_the_environments_time_limit_is_refused(tmp_path, make, limit):
    change = (ENVIRONMENT, f'make = "{make}')
    if limit is None:
        check(protocol(tmp_path, x=change), where="p")
    else:
        refused(tmp_path, rf"`horizon` must be at most {limit}, the environment's own time limit, got 6\.", x=change)


def test_protocol_horizon_beyond_a_safety_environments_thousand_steps_is_refused(tmp_path):
    change = (ENVIRONMENT, 'make = "safety-gymnasium"\narguments = { env_id = "SafetyPointGoal1-v0" }')
    boxes = ("low = [-0.5], high = [0.5]", "low = [-1, -1], high = [1, 1]")
    longer = ("horizon = 6\n", "horizon = 1001\n")
    refused(tmp_path, "`horizon` must be at most 1000, .* got 1001", x=change, y=boxes, z=longer)


def test_protocol_refuses_a_varying_schedule_that_does_not_fit_the_horizon(tmp_path):
    steps = "action = [{ count = 1, sigma = 0.2 }, { count = 1, sigma = 0.1 }]"
    message = r"`schedules` 'one' must have one block for each step of horizon 6, got 2"
    refused(tmp_path, message, x=("action = { count = 1, sigma = 0.2 }", steps))


def test_block_for_several_steps_is_as_many_blocks(tmp_path):
    """So both ways to write a plan have one hash, and share their noise."""
    energy = ("budget = 0.1", "energy = 0.1")
    block, short = "{ count = 1, sigma = 0.2 }", "{ steps = 4, count = 1, sigma = 0.2 }"
    last = "{ steps = 2, count = 2, sigma = 0.1, rho = 0.5 }"
    change = (f"action = {block}", f"action = [{short}, {last}]")
    spelled_out = (f"action = {block}", f"action = [{', '.join([block] * 4 + [last.replace('steps = 2, ', '')] * 2)}]")
    made, other = (protocol(tmp_path, x=one, y=energy) for one in (change, spelled_out))
    assert made == other
    assert made.hash == other.hash
    assert "steps" not in made.canonical
    assert [block.count for block in made.schedules[0].action] == [1, 1, 1, 1, 2, 2]
    assert parse_protocol(json.loads(made.canonical), where="p") == made


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("{ steps = 6, count = 1, sigma = 0.2 }", "`steps` must stand in a list of blocks, got 6 for the only one"),
        ("[{ steps = 1_000_000_000, count = 1, sigma = 0.2 }]", "at most 100,000 steps, got 1,000,000,000"),
        ("[{ steps = 0, count = 1, sigma = 0.2 }]", "steps"),
        ("[{ steps = 7, count = 1, sigma = 0.2 }]", "must have one block for each step of horizon 6, got 7"),
    ],
)
def test_steps_of_a_block_that_make_no_plan_are_refused(tmp_path, plan, message):
    refused(tmp_path, message, x=("action = { count = 1, sigma = 0.2 }", f"action = {plan}"))


def test_protocol_varying_schedule_needs_an_energy_limit(tmp_path):
    steps = "action = [" + ", ".join(["{ count = 1, sigma = 0.2 }"] * 6) + "]"
    change = ("action = { count = 1, sigma = 0.2 }", steps)
    refused(tmp_path, r"`attacks` must give `energy`, not `budget`: schedule 'one' varies", x=change)
    made = protocol(tmp_path, x=change, y=("budget = 0.1", "energy = 0.1"))
    check(made, where="p")
    assert made.arms[0].schedule.plan.length == 6


def test_protocol_refuses_what_is_no_toml(tmp_path):
    path = tmp_path / "p.toml"
    with pytest.raises(ProtocolError, match=r"p\.toml: cannot be read: No such file"):
        load_protocol(path)
    path.write_text("name = ")
    with pytest.raises(ProtocolError, match=r"p\.toml: must be a TOML file"):
        load_protocol(path)
    path.write_text(text(x=("seed = 7", "seed = 2020-01-01")))
    with pytest.raises(ProtocolError, match=r"p\.toml: must hold texts, numbers"):
        load_protocol(path)


@pytest.mark.parametrize("value", ["9" * 5000, "0x" + "f" * 5000, "[" * 5000 + "]" * 5000, "[" * 300 + "]" * 300])
def test_protocol_refuses_huge_and_deep_values_with_the_file_named(tmp_path, value):
    path = tmp_path / "p.toml"
    path.write_text(text(x=("gain = 0.2", f"gain = {value}")))
    with pytest.raises(ProtocolError, match=r"p\.toml: ") as caught:
        load_protocol(path)
    assert len(str(caught.value).splitlines()) == 1


def test_protocol_hash_ignores_comments_order_and_spelled_out_defaults(tmp_path):
    plain = protocol(tmp_path)
    spelled = protocol(tmp_path, x=("seed = 7\n", "# seven\nseed = 7\ndescription = ''\n"))
    assert plain.hash == spelled.hash
    for old, new in (("seed = 7", "seed = 8"), ("unverified = true", "unverified = false"), ("batch = 4", "batch = 5")):
        assert protocol(tmp_path, x=(old, new)).hash != plain.hash


def test_protocol_is_frozen(tmp_path):
    with pytest.raises(Exception, match="frozen"):
        protocol(tmp_path).seed = 3


def test_protocol_reset_seeds_of_cohort_and_initial_law(tmp_path):
    made = protocol(tmp_path)
    one, four = made.arms
    assert [made.streams(one, trial).reset_seed for trial in range(3)] == [100, 101, 102]
    assert made.streams(four, 2).reset_seed == 102
    law = protocol(
        tmp_path,
        x=("cohort = { first = 100, count = 10 }", "initial_law = 10"),
        y=('bound = "cohort"', 'bound = "clopper-pearson"'),
    )
    seeds = {law.streams(arm, trial).reset_seed for arm in law.arms for trial in range(10)}
    assert len(seeds) == 20


def test_protocol_first_is_another_protocol_with_fewer_trials(tmp_path):
    made = protocol(tmp_path)
    quick = made.first(3)
    assert (quick.trials.seeds, quick.name) == ((100, 101, 102), "toy-first-3")
    assert quick.hash != made.hash
    assert (made.quick_look_of, quick.quick_look_of, quick.first(2).quick_look_of) == (None, made.hash, made.hash)
    assert "quick_look_of" not in made.canonical
    with pytest.raises(ProtocolError, match=r"`seeds` must be in \[1, 10\], got 11"):
        made.first(11)


def test_protocols_share_no_noise(tmp_path):
    # One key that no trial depends on is enough: another description makes another protocol.
    one, other = protocol(tmp_path), protocol(tmp_path, x=("seed = 7", 'description = "pilot"\nseed = 7'))
    keys = [
        made.streams(arm, trial).key(Purpose.PROPOSAL)
        for made in (one, other, one.first(3))
        for arm in made.arms
        for trial in range(3)
    ]
    assert len(set(keys)) == len(keys)


def test_protocol_streams_have_the_reset_seed_of_the_trial(tmp_path):
    made = protocol(tmp_path)
    streams = made.streams(made.arms[0], 2)
    assert (streams.protocol, streams.root, streams.reset_seed) == (made.hash, made.seed, 102)


def test_protocol_hash_is_the_one_of_this_format(tmp_path):
    """A change of either hash is a change of the format: every stored protocol gets another hash too."""
    assert protocol(tmp_path).hash == "f7d08d828d4e9dd6cafe4da0a9a9cbe3aeb30a5ff6ca5543bfec7ad6919bed1f"
    made = protocol(tmp_path, x=("count = 10 }", "count = 10 }\nused_before = [3, 5]"))
    assert made.hash == "ea73cb9fa164ec49caa676a1eb14781b0d36765373c6f6d22e8635e05b403282"


def test_protocol_family_counts_arms_times_events(tmp_path):
    two = protocol(tmp_path, x=("[[attacks]]", '[[events]]\nname = "acts"\nevent = "no-abstention"\n\n[[attacks]]'))
    assert (two.claims, two.family) == (4, 4)


def test_protocol_all_of_event(tmp_path):
    both = (
        '"no-cost-until-goal"',
        '"all-of"\nevents = [{ name = "a", event = "no-cost-until-goal" }, '
        '{ name = "b", event = "return-at-least", arguments = { value = -9.0 } }]',
    )
    check(protocol(tmp_path, x=both), where="p")
    refused(tmp_path, r"`events\.0\.events` must hold at least one event", x=('"no-cost-until-goal"', '"all-of"'))


ONE_BLOCK = "action = { count = 1, sigma = 0.2 }"


def test_protocol_stages_become_the_schedule_of_the_runtime(tmp_path):
    sensor = 'sensor = { sigma = { position = 0.05 }, readers = "controller" }'
    made = protocol(tmp_path, x=(ONE_BLOCK, f"action = {{ count = 1, sigma = [0.2] }}\n{sensor}"))
    plan = made.schedules[0].plan
    block = ProposalSchedule(count=1, sigma={"position": 0.05})
    assert plan == Schedule(action=ProposalSchedule(count=1, sigma=[0.2]), sensor=block, readers="controller")
    assert made.schedules[1].plan == Schedule(action=ProposalSchedule(count=4, sigma=0.2, multiplier=1.05))
    check(made, where="p")
    wrapped, _ = build_arm(made, made.arms[0], made.attacks[0])
    assert wrapped.resolved.sensor.sigma == (0.05, 0.0)


def test_protocol_hash_depends_on_stages_that_are_there_and_on_no_others(tmp_path):
    """The stored studies have only an action stage. Their hashes, and with them their noise, must stay as they were."""
    content = json.loads(protocol(tmp_path).canonical)
    assert set(content["schedules"][0]) == {"name", "action"}
    assert "stage" not in content["attacks"][0]
    plain = protocol(tmp_path).hash
    changes = [
        (ONE_BLOCK, ONE_BLOCK + "\nsensor = { sigma = 0.1 }"),
        (ONE_BLOCK, "sensor = { sigma = 0.1 }"),
        (ONE_BLOCK, "action = { count = 1, sigma = [0.2] }"),
        ("budget = 0.1", 'stage = "action"\nbudget = 0.1'),
    ]
    assert len({plain, *(protocol(tmp_path, x=change).hash for change in changes)}) == 5
    for change in changes:
        made = protocol(tmp_path, x=change)
        assert parse_protocol(json.loads(made.canonical), where="p") == made


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (ONE_BLOCK, "", r"`schedules\.0`: `schedule` must have a block for at least one stage"),
        (ONE_BLOCK, ONE_BLOCK + "\nscore = { count = 1, sigma = 0.2 }", "must not have both `action` and `score`"),
        (ONE_BLOCK, "sensor = { sigma = 0.0 }", r"`schedules\.0\.sensor\.sigma`: input should be greater than 0"),
        (ONE_BLOCK, "sensor = { sigma = [0.0, 0.0] }", "must have a coordinate with noise"),
        (
            ONE_BLOCK,
            "sensor = { sigma = [0.1, -1.0] }",
            r"`schedules\.0\.sensor\.sigma\.1`: .*greater than or equal to 0",
        ),
        (ONE_BLOCK, "sensor = { sigma = {} }", "must name at least one slice"),
        (ONE_BLOCK, "sensor = { sigma = { a = -0.1 } }", r"`schedules\.0\.sensor\.sigma\.a`: input should be greater"),
        (ONE_BLOCK, 'sensor = { sigma = "wide" }', r"`schedules\.0\.sensor\.sigma`: .*valid number"),
        (
            ONE_BLOCK,
            "sensor = { sigma = 0.1, count = 2 }",
            r"unknown key `schedules\.0\.sensor\.count`.* readers, sigma",
        ),
        (ONE_BLOCK, 'sensor = { sigma = 0.1, readers = "nobody" }', r"`schedules\.0\.sensor\.readers`"),
        (ONE_BLOCK, "action = { count = 1, sigma = { a = 0.1 } }", r"`schedules\.0\.action\.sigma`"),
        (
            "budget = 0.1",
            'stage = "sensor"\nbudget = 0.1',
            "`attacks` 'push' does not fit `schedules` 'one': `stage` must",
        ),
        ("budget = 0.1", 'stage = "all"\nbudget = 0.1', 'give `energy` with stage = "all"'),
        ("budget = 0.1", 'stage = "motor"\nbudget = 0.1', r"`attacks\.0\.stage`"),
    ],
)
def test_protocol_refuses_stages_that_do_not_fit(tmp_path, old, new, message):
    refused(tmp_path, message, x=(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (ONE_BLOCK, "score = { count = 1, sigma = 0.2 }", "`schedule` must have the stage `action`"),
        (ONE_BLOCK, "action = { count = 1, sigma = [0.2, 0.2] }", "the action stage: .* 1 coordinates, got 2"),
        (
            ONE_BLOCK,
            "sensor = { sigma = { lidar = 0.2 } }",
            "must name slices of the observation, position, steps_left",
        ),
        (ONE_BLOCK, "sensor = { sigma = [0.1] }", "the sensor stage: .* 2 coordinates, got 1"),
    ],
)
def test_protocol_with_stages_that_the_environment_does_not_have_is_refused_before_the_first_trial(
    tmp_path, old, new, message
):
    refused(tmp_path, message, x=(old, new))
