"""The stage classifier, stack by stack. Stacks are written innermost first, as ``function file:line [call]``."""

from __future__ import annotations

import pytest
from main_stacks import MAIN_CASES
from worker_stacks import WORKER_CASES
from written_stacks import FORK, GETITEM, LOOP, POLL, QUEUE_GET, SITE, STD, WORKER, stack

from ioprobe.instrument.stages import Frame, Rule, classify, is_user_frame, known_call, module_of
from ioprobe.run import Stage

CASES = [*WORKER_CASES, *MAIN_CASES]


@pytest.mark.parametrize(("what", "role", "stage", "frames"), CASES, ids=[c[0] for c in CASES])
def test_a_stack_is_classed_by_what_it_shows(what: str, role: str, stage: Stage, frames: list[Frame]) -> None:
    found = classify(frames, role)
    assert (found.stage, bool(found.rule)) == (stage, True), found


@pytest.mark.parametrize(("what", "role", "stage", "frames"), CASES, ids=[c[0] for c in CASES])
def test_a_module_name_given_says_the_same_as_the_path(what: str, role: str, stage: Stage, frames: list[Frame]) -> None:
    named = [f._replace(module="__main__" if is_user_frame(f) else module_of(f.file)) for f in frames]
    assert classify(named, role).stage is stage


def test_the_hottest_user_frame_is_named_though_c_code_or_a_library_runs_in_it() -> None:
    asleep = classify(stack("Disk.read /home/me/dev.py:111 [time.sleep]", GETITEM, WORKER), "worker")
    assert (asleep.frame.function, asleep.frame.line, asleep.rule) == ("Disk.read", 111, "named for reading")
    pillow = classify(stack(f"ImageFile.load {SITE}PIL/ImageFile.py:425", GETITEM, WORKER), "worker")
    assert (pillow.frame.function, pillow.frame.file, pillow.rule) == (
        "Photos.__getitem__",
        "/home/me/data.py",
        "pillow",
    )


def test_without_a_user_frame_the_frame_that_decided_is_named() -> None:
    found = classify(stack(POLL, QUEUE_GET, LOOP, FORK), "worker")
    assert found.frame.function == "_worker_loop"


def test_the_users_rules_come_first() -> None:
    mine = [Rule("vendor decoder", Stage.DECODE, frames="fastjpg*:*"), Rule("my lock", Stage.LOCK, calls="*.guard")]
    frames = stack(f"run {SITE}fastjpg/core.py:3", GETITEM, WORKER)
    assert classify(frames, "worker").stage is Stage.TRANSFORM
    assert classify(frames, "worker", mine)[:2] == (Stage.DECODE, "vendor decoder")
    assert classify(stack(GETITEM + " [self.guard]", WORKER), "worker", mine)[:2] == (Stage.LOCK, "my lock")


def test_the_users_rules_may_name_files() -> None:
    in_file = [Rule("mine", Stage.READ, files="/home/me/data.py")]
    assert classify(stack(GETITEM, WORKER), "worker", in_file)[:2] == (Stage.READ, "mine")
    both = [Rule("mine", Stage.READ, frames="*:Photos.__getitem__", files="*/other.py")]
    assert classify(stack(GETITEM, WORKER), "worker", both).stage is Stage.TRANSFORM
    qualified = [Rule("mine", Stage.READ, frames="*:Photos.*", files="*/data.py")]
    assert classify(stack(GETITEM, WORKER), "worker", qualified).stage is Stage.READ


def test_our_own_frames_are_transparent() -> None:
    wrapped = stack(GETITEM + " [open]", f"timed {SITE}ioprobe/instrument/worker.py:9", WORKER)
    assert classify(wrapped, "worker").stage is Stage.READ


def test_frames_inherited_from_the_parent_do_not_count() -> None:
    found = classify(stack(GETITEM, WORKER), "worker")
    assert found.frame.file == "/home/me/data.py"
    assert classify(stack(LOOP, FORK), "worker")[:2] == (Stage.OTHER, "worker loop itself")


@pytest.mark.parametrize(
    ("file", "user"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("project/data.py", True),
        (SITE + "torch/nn/modules/linear.py", False),
        ("torch/nn/modules/linear.py", False),
        (STD + "threading.py", False),
        ("threading.py", False),
        ("/src/pytorch/torch/utils/data/dataloader.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        ("", False),
        ("libc.so.6", False),
    ],
)
def test_user_code_is_told_from_libraries(file: str, user: bool) -> None:
    assert is_user_frame(Frame("f", file, 1)) is user


def test_calls_that_a_rule_knows_are_recognised() -> None:
    assert known_call("zlib.decompress")
    assert known_call("batch.to")
    assert not known_call("self.count")


def test_an_empty_stack_or_an_unknown_role_is_the_callers_bug() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        classify([], "worker")
    with pytest.raises(ValueError, match="role 'rank'"):
        classify(stack(GETITEM), "rank")
