"""Going on with a run from its last checkpoint, and which settings may change then.

Imported by the command line before it is known to be right: torch is loaded only by what trains.
"""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.run_state import Checkpoint, DamagedCheckpoint, RunLock, checkpoints_of

if TYPE_CHECKING:
    from fastdqn.envs.make import EnvFunction
    from fastdqn.metrics import Report
    from fastdqn.trainer import Trainer

__all__ = ["CHANGEABLE", "changed_config", "resume", "resumed_trainer", "saved_config"]

# What the run has learned and will learn does not hang on these, but for its length, and on another
# device for rounding.
CHANGEABLE = (
    *("steps", "frames", "episodes", "hours"),
    *("device", "threads", "workers", "prefetch_threads", "replay_device"),
    *("replay_storage", "replay_dir", "allow_overcommit"),
    *("log_period_steps", "save_period_steps", "wandb"),
    *("evaluation_epsilon", "evaluation_period_steps", "evaluation_episodes", "evaluation_frames"),
    *("checkpoint_period_minutes", "checkpoint_period_steps", "keep_checkpoints"),
)


def resume(
    path: str | PathLike[str],
    *,
    env_fn: EnvFunction | None = None,
    stop: Callable[[], bool] = lambda: False,
    **changes: Any,
) -> Iterator[Report]:
    """Go on with the run in the folder `path`, yielding reports as `fastdqn.train` does.

    It goes on from the last checkpoint that is whole, as if it had never stopped; what is worth
    knowing of that, such as environments that have to begin a new episode, is a warning. `changes`
    are settings with a new value, of those that may change; `hours` count anew. A run that was made
    with functions (`env_fn`, `epsilon`) needs them again.

    Raises `UserError` where it cannot go on.
    """
    trainer = resumed_trainer(path, changes, env_fn=env_fn)
    for note in trainer.notes:
        warnings.warn(note, stacklevel=2)
    return trainer.run(stop)


def resumed_trainer(
    path: str | PathLike[str], changes: dict[str, Any], *, env_fn: EnvFunction | None = None
) -> Trainer:
    """The trainer of a run that goes on; its `notes` say from where. See `resume`."""
    from fastdqn.run_folder import Resumed
    from fastdqn.trainer import Trainer

    run = _run_folder(path)
    lock = RunLock(run)
    try:
        damages: list[DamagedCheckpoint] = []
        for folder in checkpoints_of(run):
            try:
                checkpoint = Checkpoint(folder)
                config = _where_it_is(changed_config(_config_of(checkpoint), changes), run)
                resumed = Resumed(checkpoint, lock, checkpoint.state())
                with checkpoint.understood():
                    _check_functions(run, resumed.state, config, env_fn)
                trainer = Trainer(config, env_fn=env_fn, resumed=resumed)
            except DamagedCheckpoint as damage:
                damages.append(DamagedCheckpoint(str(damage)))
                del damage
                # What was made of it goes before the next is loaded: two memories may not fit.
                gc.collect()
                continue
            trainer.notes[:0] = [
                *(f"{damage}; going on from the one before it" for damage in damages),
                f"resumed at step {trainer.counters.steps:,} from {folder}",
            ]
            return trainer
        raise damages[0] if damages else _no_checkpoint(run)
    except BaseException:
        lock.release()
        raise


def _check_functions(
    run: Path, state: Mapping[str, Any], config: Config, env_fn: EnvFunction | None
) -> None:
    """A function is no setting that a file holds: it has to be given once more."""
    for name, given in (("env_fn", env_fn), ("epsilon", config.epsilon)):
        if (given is not None) != (name in state["functions"]):
            had = "was" if name in state["functions"] else "was not"
            raise UserError(f"{run}: {name} {had} given as a function; do the same to resume it")


def saved_config(path: str | PathLike[str]) -> Config:
    """The settings of the run in the folder `path`, as its last whole checkpoint has them."""
    run = _run_folder(path)
    lock = RunLock(run)  # nobody removes one while it is read
    try:
        errors: list[UserError] = []
        for folder in checkpoints_of(run):
            try:
                return _config_of(Checkpoint(folder))
            except DamagedCheckpoint as damaged:
                errors.append(damaged)
        raise errors[0] if errors else _no_checkpoint(run)
    finally:
        lock.release()


def _config_of(checkpoint: Checkpoint) -> Config:
    try:
        return Config.from_dict(checkpoint.config)
    except (UserError, TypeError, AttributeError) as error:  # of another version, or forged
        raise checkpoint.misunderstood(error) from error


def _where_it_is(config: Config, run: Path) -> Config:
    """With the folder that the run is in now: it may have been moved, and a relative one means
    another place in another working directory."""
    if (Path(config.out or "") / run.name).resolve() == run.resolve():
        return config
    return dataclasses.replace(config, out=str(run.resolve().parent))


def changed_config(before: Config, changes: dict[str, Any]) -> Config:
    """The settings of a run that goes on. Raises `UserError` for a change that cannot be made."""
    after = Config.from_dict({**before.to_dict(), **changes})
    for name, value in after.to_dict().items():
        if value != getattr(before, name) and name not in CHANGEABLE:
            raise UserError(
                f"{name}={value!r}: the run has {getattr(before, name)!r}; a resumed run keeps it "
                "(--help says under --resume what may change)"
            )
    return after


def _no_checkpoint(run: Path) -> UserError:
    return UserError(
        f"{run}: no checkpoint to resume from; a run saves one as it goes and at its end"
    )


def _run_folder(path: str | PathLike[str]) -> Path:
    run = Path(path)
    if not run.is_dir():
        raise UserError(f"{run}: no such folder of a run; expected one that a run was saved in")
    return run
