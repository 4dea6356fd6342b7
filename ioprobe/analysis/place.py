"""Where a process stands among the ranks of its job, by the variables of torchrun or SLURM."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from ioprobe.errors import UsageError

_DEFAULT_PORT = 29500


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where this process stands among the ranks."""

    rank: int
    world_size: int
    local_rank: int = 0
    local_ranks: int = 1
    """Ranks on this host, as the launcher says."""
    address: str
    port: int
    """Of the rendezvous: the agent's store, or the port beside which rank 0 hosts one."""
    agent_store: bool = False
    attempt: str = "0"
    """Counts restarts."""

    def environment(self) -> dict[str, str]:
        """Return what torch's ``env://`` reads, for the user's code."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_ranks),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def place_of(environ: Mapping[str, str]) -> Place | None:
    """Return this process's place among several ranks, from torchrun's or SLURM's variables; None for one rank.

    Under ``srun`` the ranks meet at the first node of the step, unless MASTER_ADDR says otherwise. A batch script
    carries the job's variables, too, but is one process: only its steps have ranks.

    Raises:
        UsageError: they contradict each other, or do not say where to meet.

    >>> place_of({}), place_of({"WORLD_SIZE": "1", "RANK": "0"})
    (None, None)
    >>> place_of({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}).port
    29400
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _place(environ, ("RANK", "WORLD_SIZE", "LOCAL_RANK"), _number(environ, "LOCAL_WORLD_SIZE", 1))
    if "SLURM_PROCID" not in environ:
        return None
    size = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if name in environ), "")
    nodes = next((environ[name] for name in _NODE_LISTS if name in environ), "")
    in_script = size == "SLURM_NTASKS" and environ.get("ENVIRONMENT") == "BATCH"
    if not size or in_script or not (nodes or "MASTER_ADDR" in environ):
        return None
    known = {"MASTER_PORT": _port_of_job(environ)} | ({"MASTER_ADDR": first_node(nodes)} if nodes else {})
    return _place({**known, **environ}, ("SLURM_PROCID", size, "SLURM_LOCALID"), _tasks_here(environ))


_NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
_TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")


def first_node(nodes: str) -> str:
    """Return the first node of SLURM's compressed list.

    >>> first_node("gpu[07-09,12],login1"), first_node("rack[1-2]n[003,5]"), first_node("alone")
    ('gpu07', 'rack1n003', 'alone')
    """
    first = re.match(r"(?:[^\[,]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else nodes)


def _port_of_job(environ: Mapping[str, str]) -> str:
    """Two jobs on one node want two ports, and all ranks of a job the same."""
    job = environ.get("SLURM_JOB_ID", environ.get("SLURM_JOBID", ""))
    return str(15_000 + int(job[-4:])) if job.isdecimal() else str(_DEFAULT_PORT)


def _tasks_here(environ: Mapping[str, str]) -> int:
    """Return the ranks on this node; SLURM writes 4(x2),3 for nodes with 4, 4 and 3."""
    name = next((name for name in _TASKS if name in environ), "")
    if not name:
        return 1
    node, text, tasks = _number(environ, "SLURM_NODEID", 0), environ[name], 1
    for group in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", group.strip())
        if found is None:
            raise _no_number(name, text)
        node, tasks = node - int(found[2] or 1), int(found[1])
        if node < 0:
            break
    return tasks


def _place(environ: Mapping[str, str], names: tuple[str, str, str], local_ranks: int) -> Place | None:
    rank, size, local = (_number(environ, name, default) for name, default in zip(names, (0, 1, 0), strict=True))
    if size < 2:
        return None
    if not 0 <= rank < size:
        raise UsageError(f"{names[0]} is {rank} with {names[1]} {size}", hint="start all ranks with one launcher")
    if "MASTER_ADDR" not in environ:
        raise UsageError(
            f"this is rank {rank} of {size}, but MASTER_ADDR does not say where they meet",
            hint="start it with torchrun, or set MASTER_ADDR and MASTER_PORT",
        )
    return Place(
        rank=rank,
        world_size=size,
        local_rank=local,
        local_ranks=max(1, local_ranks),
        address=environ["MASTER_ADDR"],
        port=_number(environ, "MASTER_PORT", _DEFAULT_PORT),
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    raw = environ.get(name)
    if raw is None:
        return default
    try:
        return int(raw)
    except ValueError:
        raise _no_number(name, raw) from None


def _no_number(name: str, text: str) -> UsageError:
    return UsageError(f"{name} is '{text}'; expected a number", hint="start all ranks with one launcher")
