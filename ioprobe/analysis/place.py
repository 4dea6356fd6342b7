"""Where a process stands among the ranks of its job, by the variables of torchrun or SLURM."""

from __future__ import annotations

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

    Raises:
        UsageError: they contradict each other, or do not say where to meet.

    >>> place_of({}), place_of({"WORLD_SIZE": "1", "RANK": "0"})
    (None, None)
    >>> place_of({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}).port
    29400
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    elif "SLURM_PROCID" in environ and "MASTER_ADDR" in environ:
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
        names = ("SLURM_PROCID", size, "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
    else:
        return None
    rank, size_, local = (_number(environ, name, default) for name, default in zip(names, (0, 1, 0), strict=False))
    if size_ < 2:
        return None
    if not 0 <= rank < size_:
        raise UsageError(f"{names[0]} is {rank} with {names[1]} {size_}", hint="start all ranks with one launcher")
    if "MASTER_ADDR" not in environ:
        raise UsageError(
            f"this is rank {rank} of {size_}, but MASTER_ADDR does not say where they meet",
            hint="start it with torchrun, or set MASTER_ADDR and MASTER_PORT",
        )
    return Place(
        rank=rank,
        world_size=size_,
        local_rank=local,
        local_ranks=max(1, _number(environ, names[3], 1)),
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
        return int(raw.split("(")[0])  # SLURM writes 2(x3)
    except ValueError:
        raise UsageError(f"{name} is '{raw}'; expected a number", hint="start all ranks with one launcher") from None
