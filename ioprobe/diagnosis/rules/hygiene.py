"""IO5xx: hygiene."""

from __future__ import annotations

import re

from ioprobe.diagnosis.rules.base import Abstain, Finding, rule, unknown
from ioprobe.diagnosis.rules.facts import PipelineFacts

_USER_INFO = re.compile(r"^[a-z][a-z0-9+.-]*://([^/@\s]+)@", re.IGNORECASE)
_QUERY = re.compile(
    r"[?&](X-Amz-Signature|X-Amz-Credential|X-Goog-Signature|AWSAccessKeyId|Signature|sig|sv|token|access_token|"
    r"password|passwd|secret|api_key|apikey|key)=",
    re.IGNORECASE,
)


@rule("IO501", "no-timeout", needs="num_workers timeout_s", key="timeout")
def no_timeout(facts: PipelineFacts) -> list[Finding] | Abstain:
    """A worker that hangs stops the job without a word.

    What it sees: timeout = 0 with workers, where data comes over a network or several ranks train together.
    Why it matters: With timeout = 0 the loader waits for ever; the other ranks wait in a collective until its
        watchdog fires, and the log blames communication.
    When it is wrong: A scheduler or launcher that watches for progress.
    Example:
        timeout = 0
        timeout = 300    # fixed: longer than the slowest batch
    """
    if not facts.num_workers or facts.timeout_s:
        return []
    if facts.ranks == 1 and facts.remote is None:
        return unknown(facts, "storage")
    if facts.ranks == 1 and not facts.remote:
        return []
    why = f"{facts.ranks} ranks wait with it" if facts.ranks > 1 else "the data comes over a network"
    return [
        Finding(text=f"timeout = 0: a worker that hangs stops the job silently, and {why}", fix="set timeout = 300"),
    ]


@rule("IO502", "unseeded-workers", needs="num_workers seeded", key="seed")
def unseeded_workers(facts: PipelineFacts) -> list[Finding] | Abstain:
    """Shuffling and augmentation cannot be repeated.

    What it sees: Several ranks that shuffle with neither a generator, a seed nor a worker_init_fn.
    Why it matters: torch derives each worker's seed from the global generator at `iter(loader)`; without one of its
        own, the order changes with every random number drawn before, and a failed job cannot be repeated.
    When it is wrong: A global torch.manual_seed in the training script, with nothing random drawn before.
    Example:
        seed = 0    # DataLoader(..., generator=torch.Generator().manual_seed(0))
    """
    if facts.seeded or facts.ranks == 1 or not facts.shuffle or facts.num_workers == 0:
        return []
    return [
        Finding(
            text=f"{facts.ranks} ranks shuffle with workers that nothing seeds: no run can be repeated",
            fix="pass a seeded generator (and a worker_init_fn for libraries with their own random state)",
        )
    ]


@rule("IO503", "credentials-in-url", level="error", key="target")
def credentials_in_url(facts: PipelineFacts) -> list[Finding] | Abstain:
    """A URL holds a password, a key or a signature.

    What it sees: user:password@ or a query parameter that signs or authorises, in target or dataset URL.
    Why it matters: URLs end in logs, process lists, run files and issue trackers; and signed ones expire in mid-run.
    When it is wrong: A public user name without a secret.
    Example:
        target = "https://user:secret@data.example.org/train.tar"
        target = "https://data.example.org/train.tar"     # fixed: netrc, environment or instance role
    """
    for url in (facts.target, facts.url):
        user = _USER_INFO.match(url)
        query = _QUERY.search(url)
        if (user and ":" in user.group(1)) or query:
            what = f"the query parameter '{query.group(1)}'" if query else "a user name and a password"
            return [
                Finding(
                    text=f"the URL holds {what}",
                    fix="take credentials from the environment, a profile or the instance's role",
                )
            ]
    return []


@rule("IO504", "last-batch-recompiles", needs="compiled", key="drop_last")
def last_batch_recompiles(facts: PipelineFacts) -> list[Finding] | Abstain:
    """The last batch of an epoch has another shape.

    What it sees: A compiled or captured step, and drop_last off where the dataset does not divide into batches.
    Why it matters: torch.compile compiles again for the odd shape (minutes), CUDA graphs fail, and ranks whose last
        batch is missing wait for the others.
    When it is wrong: Padding to a full batch, `dynamic=True`, or evaluation, where every sample counts.
    Example:
        compile = true
        drop_last = true    # fixed
    """
    if not facts.compiled or facts.drop_last:
        return []
    if facts.drop_last is None:
        return unknown(facts, "drop_last")
    if facts.num_samples is not None and facts.batch_size:
        per_rank = facts.num_samples // facts.ranks
        if facts.num_samples % facts.ranks == 0 and per_rank % facts.batch_size == 0:
            return []
        rest = f" of {per_rank % facts.batch_size or 'another number of'} samples"
    else:
        rest = ""
    return [
        Finding(
            text=f"the step is compiled, but drop_last is off: the last batch{rest} compiles it again in every new "
            f"shape",
            fix="set drop_last = true (training) or pad the last batch",
        )
    ]


@rule("IO505", "ignore-without-reason")
def ignore_without_reason(facts: PipelineFacts) -> list[Finding] | Abstain:
    """A rule is waived, and nobody says why.

    What it sees: `# ioprobe: ignore[...]` without a code, or without a reason behind it.
    Why it matters: The next reader cannot tell whether the waiver still holds.
    When it is wrong: Never; a few words are enough.
    Example:
        num_workers = 16    # ioprobe: ignore[IO101]
        num_workers = 16    # ioprobe: ignore[IO101] they wait for the archive
    """
    if not facts.bare_ignores:
        return []
    return [
        Finding(
            text=f"{facts.bare_ignores} inline ignores give no code or no reason",
            fix="write `# ioprobe: ignore[CODE] reason`",
        )
    ]
