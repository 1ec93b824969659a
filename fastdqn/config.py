"""The one place where every setting of a run lives: its name, unit, default and limits.

The command line is generated from `Config`, scripts construct it, a run saves it. It knows neither
torch nor the environments, so that `fastdqn-train --help` and a refusal of a wrong value are quick;
`AtariEnv` stands by itself as well, and a test keeps its defaults equal to these.

Units: a *frame* is one frame of the emulator, a *step* is one decision of the agent (`frame_skip`
frames), an *update* is one gradient step.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fastdqn.errors import UserError
from fastdqn.presets import PRESETS, settings_of
from fastdqn.units import parse_bytes

__all__ = ["Config"]

DEFAULT_BUDGET_STEPS = 50_000_000
DEFAULT_LEARNING_STARTS_STEPS = 20_000


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every setting of a run. A frame is one of the emulator's, a step is one decision of the
    agent (4 frames), an update is one gradient step.

    The defaults are a double DQN for Atari that learns within a few million frames on one machine:
    Adam with Dopamine's epsilon, the mean Huber loss, returns of 3 steps, and warm-up and
    exploration as in Dopamine.
    """

    # What is played.
    game: str | None = None
    """Atari game, in any of its usual name forms, such as Breakout."""
    env: str | None = None
    """Gymnasium environment instead, such as CartPole-v1, or what makes one, my_module:make_env.
    Scripts take settings for vectors from `Config.preset("classic", env=...)`."""
    preprocess: Literal["none", "rescale", "grey", "atari"] = "none"
    """Observations of such an environment. rescale: vectors, from their bounds to [-1, 1]. grey:
    images, in grey and of at most 84 by 84 pixels. atari: also frame_skip, reward_clip and the
    maximum of a step's last two images, as in games."""
    num_envs: int = 1
    """Environments stepped together. Every period below keeps its meaning with more of them."""
    workers: int | None = None
    """Processes that the environments are split over; 0: this one; none: as many as pay off on
    this machine. Results are the same."""
    frame_skip: int = 4
    """Frames an action is repeated for: one step."""
    sticky_actions: float = 0.0
    """Probability, each frame, that the emulator repeats the previous action (0.25 is usual)."""
    full_action_set: bool = False
    """Use all 18 actions rather than those that do something in the game."""
    noop_max: int = 30
    """Upper limit of the random number of no-op frames that a game starts with."""
    fire_reset: bool = False
    """Press FIRE when a game starts and after each lost life."""
    life_loss: Literal["ignore", "terminal", "penalty"] = "terminal"
    """A lost life: nothing special, terminal for learning (the game goes on), or a penalty."""
    life_loss_penalty: float = -1.0
    """Added to the learning reward where a life is lost and life_loss is penalty."""
    reward_clip: Literal["sign", "clip", "none"] = "sign"
    """The reward learned from: its sign, clipped to [-1, 1], or raw. Scores are always raw."""
    reward_clip_at: Literal["step", "frame"] = "step"
    """Clip the sum over a step's frames, or sum the clipped rewards of its frames."""
    max_episode_frames: int = 108_000
    """A game is cut (truncated, not terminated) after this many frames."""

    # What is remembered.
    stack: int = 4
    """Observations that make up one input of the network."""
    padding: Literal["zero", "repeat", "reject"] = "zero"
    """Before a game's first frame: zeros, that frame repeated, or act at random and never learn."""
    n_step: int = 3
    """Steps whose rewards are summed before the target bootstraps."""
    replay_capacity: int = 250_000
    """Observations kept for replay over all environments, one a step. What a million of a game's
    take, fastdqn-memory measures: 7.1 GB raw, far less compressed."""
    replay_memory: str | None = None
    """Size the capacity from bytes instead, such as 2GiB: what they surely have room for. In files
    (replay_dir) these count too."""
    replay_storage: Literal["auto", "raw", "compressed"] = "auto"
    """How observations are kept; auto: compressed, without loss, for games and images in grey, and
    raw for others."""
    replay_dir: str | None = None
    """Folder for files that hold the observations, mapped into memory; none: memory alone."""
    replay_eviction: Literal["fifo", "random"] = "fifo"
    """What a full memory gives up: the oldest, or blocks drawn at random, so that any age may
    survive."""
    allow_overcommit: bool = False
    """Start also where the memory or the disk will not hold the run, by what is known before."""

    # What is learned.
    discount: float = 0.99
    """Weight of the next step's value (gamma)."""
    double: bool = True
    """Double DQN: the online network selects the next action, the target network values it."""
    loss: Literal["huber", "squared"] = "huber"
    """Of the temporal-difference error e: Huber (gradient e, at most 1) or e squared."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Over the batch."""
    optimizer: Literal["adam", "rmsprop_centered"] = "adam"
    """Adam, or the centred RMSProp of the Nature paper."""
    learning_rate: float = 1e-4
    """Step size of the optimizer."""
    optimizer_epsilon: float = 1.5e-4
    """Adam: added to the root in the denominator. Centred RMSProp: added inside the root."""
    rmsprop_decay: float = 0.95
    """Decay of centred RMSProp's running means, for each update."""
    max_grad_norm: float | None = None
    """Scale the gradient down to this norm where it is longer; none: never."""
    batch_size: int = 32
    """Transitions in an update."""
    train_period_steps: int = 4
    """Steps from one update to the next."""
    target_period_steps: int = 2_000
    """Steps from one copy of the online into the target network to the next."""
    target_tau: float | None = None
    """Move the target network by this fraction after every update, in place of the copies."""
    learning_starts_steps: int | None = None
    """Steps taken before the first update; none: 20,000, or a tenth of a budget below 200,000."""

    # The network.
    first_padding: int = 0
    """Pixels of zero padding around the input of the first convolution (the Lua code has 1)."""
    shared_last_bias: bool = False
    """One bias that all actions share in the last layer."""
    initial_weights: Literal["fan_in_uniform", "xavier_uniform"] = "fan_in_uniform"
    """Weights and biases uniform in +-1/sqrt(fan-in) (PyTorch's default), or Xavier and zeros."""
    hidden_units: tuple[int, ...] = (128, 128)
    """Units of each hidden layer where observations are vectors."""

    # Exploration.
    epsilon_start: float = 1.0
    """Probability of a random action at first."""
    epsilon_end: float = 0.01
    """Probability of a random action at last."""
    epsilon_decay_steps: int = 250_000
    """Steps over which it goes from the one to the other, in a straight line."""
    epsilon_decay_from: Literal["first_step", "learning_starts"] = "learning_starts"
    """Where that line begins."""
    epsilon: Callable[[int], float] | None = None
    """In scripts: any function from the step to the probability, in place of the line."""

    # Evaluation: whole games in environments of its own. Training is the same with and without.
    evaluation_epsilon: float = 0.01
    """Probability of a random action when the trained agent is evaluated."""
    evaluation_period_steps: int | None = 250_000
    """Steps from one evaluation to the next; a random policy is evaluated at the start. None, or
    longer than the run: no evaluations."""
    evaluation_episodes: int | None = 10
    """Games of an evaluation; none: as many as its frames allow."""
    evaluation_frames: int | None = 100_000
    """Frames of all games of an evaluation, after which the last is interrupted; none: no limit."""

    # When it ends: whichever comes first.
    steps: int | None = None
    """End after this many steps. With no end given at all: 50 million, the papers' 200 million
    frames."""
    frames: int | None = None
    """End after this many frames."""
    episodes: int | None = None
    """End after this many games."""
    hours: float | None = None
    """End after this many hours."""

    # The run.
    seed: int = 0
    """Determines everything: environments, exploration, sampling, initial weights."""
    device: str = "auto"
    """Where the networks live: cpu, cuda, cuda:1, ...; auto: CUDA where there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Numbers that the network computes in. bfloat16: products of numbers of 8 bits, summed in
    float32, with weights, loss and last layer in float32. auto: bfloat16 for images where the
    processor or GPU has instructions for it, else float32."""
    threads: int | None = None
    """Threads that PyTorch computes with on a CPU; none: one for each core."""
    replay_device: Literal["host", "cuda"] = "host"
    """Where batches are gathered: in the host's memory, or from a copy of the frames, uncompressed,
    in the GPU's, so that only indices travel."""
    prefetch_threads: int = 1
    """Threads that gather the next batches meanwhile; 0: each is gathered when it is needed. The
    batches are the same."""
    out: str | None = "runs"
    """Folder in which the run makes its own folder; none: write nothing."""
    wandb: str | None = None
    """Project of Weights & Biases to log to as well; needs the package wandb and a login."""
    log_period_steps: int = 1_000
    """Steps from one line of the logs to the next."""
    save_period_steps: int = 100_000
    """Steps from one save of the model to the next; the last one is saved at the end."""
    checkpoint_period_minutes: float | None = 5.0
    """Minutes from one checkpoint to the next: all that it takes to resume the run, its replay
    memory included. One more is made at the end. None, and no steps either: there are none."""
    checkpoint_period_steps: int | None = None
    """Steps from one checkpoint to the next; with minutes as well: whichever comes first."""
    keep_checkpoints: int = 2
    """Older checkpoints are removed."""
    init_from: str | None = None
    """Run or model file whose weights to start with. Nothing else is taken over: the replay memory
    is empty, optimizer, counts, exploration and logs begin anew. See also --resume."""

    def __post_init__(self) -> None:
        _check_types(self)
        for names, holds, expected in _LIMITS:
            for name in names:
                value = getattr(self, name)
                for item in value if isinstance(value, tuple) else (value,):
                    if item is not None and not holds(item):
                        raise _wrong(name, value, expected)
        if self.game is not None and self.env is not None:
            raise UserError(
                f"game={self.game!r} and env={self.env!r}: a run has one of them; leave one out"
            )
        if self.workers is not None and self.workers > self.num_envs:
            raise UserError(
                f"workers={self.workers}: num_envs={self.num_envs} can be split over at most "
                f"{self.num_envs}; give fewer workers, or more environments"
            )
        for name in self.options_without_use if self.env is not None else ():
            value = getattr(self, name)
            if value != _DEFAULTS[name]:
                also = ", or give preprocess='atari'" if name in _IMAGE_OPTIONS else ""
                raise UserError(
                    f"{name}={value!r}: only a game has this setting; leave it out with "
                    f"env={self.env!r}{also}"
                )
        if self.game is not None and self.preprocess != "none":
            raise UserError(
                f"preprocess={self.preprocess!r}: games have their own preprocessing; leave it out"
            )
        if self.wandb is not None and self.out is None:
            raise UserError(f"wandb={self.wandb!r} and out=None: logging needs a folder; give out")
        if self.evaluation_episodes is None and self.evaluation_frames is None:
            raise UserError(
                "evaluation_episodes=None and evaluation_frames=None: an evaluation would never "
                "end; give one of them"
            )
        if self.replay_capacity < (least := self.least_replay_capacity):
            raise UserError(
                f"replay_capacity={self.replay_capacity}: stack={self.stack}, "
                f"n_step={self.n_step} and num_envs={self.num_envs} need at least {least}"
            )
        if self.replay_memory is not None:
            try:
                parse_bytes(self.replay_memory)
            except ValueError:
                raise _wrong(
                    "replay_memory", self.replay_memory, "a size such as 2GiB or 500MB"
                ) from None
        self._check_learning_starts()

    @property
    def least_replay_capacity(self) -> int:
        """Room for what each environment's next stack and window need, whatever the others do.

        A step stores two observations of an environment whose episode it ends: the last, and the
        first of the next.
        """
        return 2 * self.num_envs * (self.stack + self.n_step)

    @property
    def frames_per_step(self) -> int:
        """Frames of a whole step: one where frames are not skipped as in a game."""
        return 1 if "frame_skip" in self.options_without_use else self.frame_skip

    @property
    def options_without_use(self) -> tuple[str, ...]:
        """The settings of a game that this run does not read."""
        if self.game is not None:
            return ("preprocess",)
        kept = _IMAGE_OPTIONS if self.preprocess == "atari" else ()
        return tuple(name for name in _GAME_OPTIONS if name not in kept)

    @property
    def budget_steps(self) -> int | None:
        """Steps after which the run surely has ended, as far as that can be said beforehand."""
        if self.steps is None and self.frames is None:
            timed = self.episodes is not None or self.hours is not None
            return None if timed else DEFAULT_BUDGET_STEPS
        by_frames = math.inf if self.frames is None else -(-self.frames // self.frames_per_step)
        return int(min(math.inf if self.steps is None else self.steps, by_frames))

    def _check_learning_starts(self) -> None:
        """Refuse a start before anything can be drawn, or after the run's end."""
        starts = self.resolved_learning_starts_steps
        first = self._first_drawable_step
        if starts < first:
            raise UserError(
                f"learning_starts_steps={starts}: nothing can be drawn from the memory before step "
                f"{first} with n_step={self.n_step} and num_envs={self.num_envs}; give {first} or "
                "more"
            )
        period, budget = self.train_period_steps, self.budget_steps
        update = -(-max(starts, 1) // period) * period
        if budget is not None and update > budget:
            raise UserError(
                f"learning_starts_steps={starts} and train_period_steps={period}: the first update "
                f"would be at step {update}, but the run ends at step {budget}, so nothing would "
                "be learned; give smaller ones, or a longer run"
            )

    @property
    def _first_drawable_step(self) -> int:
        """Steps after which every environment has one transition that can be drawn."""
        unpadded = self.stack - 1 if self.padding == "reject" else 0
        return (self.n_step + unpadded) * self.num_envs

    @property
    def resolved_learning_starts_steps(self) -> int:
        """`learning_starts_steps`, or what leaving it out means for this run."""
        if self.learning_starts_steps is not None:
            return self.learning_starts_steps
        budget = self.budget_steps
        starts = DEFAULT_LEARNING_STARTS_STEPS
        if budget is not None:
            starts = min(starts, budget // 10)
        return max(starts, self._first_drawable_step)

    @property
    def makes_checkpoints(self) -> bool:
        """Whether all that it takes to resume the run is saved in the course of it."""
        periods = (self.checkpoint_period_minutes, self.checkpoint_period_steps)
        return self.out is not None and any(period is not None for period in periods)

    @property
    def resolved_replay_storage(self) -> Literal["raw", "compressed"]:
        """`replay_storage`, or what auto means for this run."""
        if self.replay_storage == "auto":
            images = self.game is not None or self.preprocess in ("grey", "atari")
            return "compressed" if images else "raw"
        return self.replay_storage

    def resolved(self) -> Config:
        """The same run with every value filled in that was left to the defaults' rules."""
        ends = (self.steps, self.frames, self.episodes, self.hours)
        return dataclasses.replace(
            self,
            learning_starts_steps=self.resolved_learning_starts_steps,
            steps=DEFAULT_BUDGET_STEPS if all(end is None for end in ends) else self.steps,
            replay_storage=self.resolved_replay_storage,
        )

    def game_options(self) -> dict[str, Any]:
        """The settings that say how an Atari game is played, by name."""
        return {name: getattr(self, name) for name in _GAME_OPTIONS}

    def env_options(self) -> dict[str, Any]:
        """The settings that say what environments show and reward, by name."""
        return {"preprocess": self.preprocess, **self.game_options()}

    def network_options(self) -> dict[str, Any]:
        """The settings that a network is built from, by name."""
        return {name: getattr(self, name) for name in _NETWORK_OPTIONS}

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Config:
        """The settings published under `name` (see `fastdqn.presets`), with some replaced.

        "classic" has settings of its own for some environments: give `env` here, not later. Raises
        `UserError` for an unknown preset or setting.
        """
        if name not in PRESETS:
            raise _wrong("preset", name, f"one of {', '.join(PRESETS)}", PRESETS)
        return cls.from_dict({**settings_of(name, overrides.get("env")), **overrides})

    @property
    def preset_name(self) -> str | None:
        """The preset that all of these settings are of: how the run learns, not for how long."""
        names = {key for name in PRESETS for key in settings_of(name, self.env)} - _OF_NO_PRESET
        for name in PRESETS:
            expected = {**_DEFAULTS, **settings_of(name, self.env)}
            # What was left to a rule may have been filled in.
            given = [key for key in names if expected[key] is not None]
            if all(getattr(self, key) == expected[key] for key in given):
                return name
        return None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """A config from settings by name, such as `to_dict` made. Unknown names: `UserError`."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise _wrong("setting", name, "a field of fastdqn.Config", known)
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})

    def to_dict(self) -> dict[str, Any]:
        """Every setting by name, ready for JSON. A function given as `epsilon` becomes null."""
        return dataclasses.asdict(dataclasses.replace(self, epsilon=None))


def _wrong(name: str, value: object, expected: str, known: Any = ()) -> UserError:
    """One line that names the value, what was expected, and the nearest known one or default."""
    near = difflib.get_close_matches(str(value), known, n=1)
    fix = f"; did you mean {near[0]}?" if near else ""
    default = _DEFAULTS.get(name)
    if not near and default is not None:
        fix = f"; the default is {default}"
    return UserError(f"{name}={value!r}: expected {expected}{fix}")


def _check_types(config: Config) -> None:
    """Whole numbers are whole, numbers finite, choices among their choices."""
    for name, hint in _HINTS.items():
        value = getattr(config, name)
        kinds = get_args(hint) if get_origin(hint) is not Literal else ()
        if value is None and type(None) in kinds:
            continue
        if get_origin(hint) is Literal:
            choices = get_args(hint)
            if value not in choices:
                raise _wrong(name, value, f"one of {', '.join(choices)}", choices)
        elif hint is bool:
            if not isinstance(value, bool):
                raise _wrong(name, value, "True or False")
        elif get_origin(hint) is tuple and not isinstance(value, tuple):
            raise _wrong(name, value, "a tuple of whole numbers")
        elif hint is int or int in kinds:
            items = value if isinstance(value, tuple) else (value,)
            if any(not isinstance(item, int) or isinstance(item, bool) for item in items):
                raise _wrong(name, value, "a whole number")
        elif hint is float or float in kinds:
            if not isinstance(value, (int, float)) or not -_LARGEST <= value <= _LARGEST:
                raise _wrong(name, value, "a finite number")
        elif hint is str or str in kinds:
            if not isinstance(value, str) or not value:
                raise _wrong(name, value, "a name")
        elif not callable(value):
            raise _wrong(name, value, "a function from the step to a probability")


_GAME_OPTIONS = (
    *("frame_skip", "sticky_actions", "full_action_set", "noop_max", "fire_reset", "life_loss"),
    *("life_loss_penalty", "reward_clip", "reward_clip_at", "max_episode_frames"),
)
# Those that preprocess="atari" gives to other environments.
_IMAGE_OPTIONS = ("frame_skip", "reward_clip", "reward_clip_at")
# A preset may have them, and a run that differs is still of that preset.
_OF_NO_PRESET = {"steps", "threads"}
_NETWORK_OPTIONS = (
    *("stack", "first_padding", "shared_last_bias", "initial_weights", "hidden_units"),
)

_LARGEST = sys.float_info.max
_HINTS = get_type_hints(Config)
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Config)}

# Settings by the limit that they share; what is None is not limited.
_LIMITS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (
        ("learning_starts_steps", "epsilon_decay_steps", "seed"),
        lambda value: value >= 0,
        "0 or more",
    ),
    (
        (
            *("replay_capacity", "batch_size", "train_period_steps", "target_period_steps"),
            *("steps", "frames", "episodes", "log_period_steps", "save_period_steps"),
            *("evaluation_period_steps", "evaluation_episodes", "evaluation_frames"),
            *("checkpoint_period_steps", "keep_checkpoints"),
        ),
        lambda value: value >= 1,
        "1 or more",
    ),
    (("prefetch_threads",), lambda value: 0 <= value <= 64, "0 to 64"),
    (("noop_max",), lambda value: 0 <= value <= 100_000, "0 to 100,000"),
    (("first_padding",), lambda value: 0 <= value <= 100, "0 to 100"),
    (("stack", "frame_skip"), lambda value: 1 <= value <= 256, "1 to 256"),
    (("threads",), lambda value: 1 <= value <= 1024, "1 to 1,024"),
    (("workers",), lambda value: 0 <= value <= 1024, "0 to 1,024"),
    (("n_step", "num_envs", "hidden_units"), lambda value: 1 <= value <= 65_536, "1 to 65,536"),
    (("max_episode_frames",), lambda value: 1 <= value <= 2**62, "1 to 2^62"),
    (
        (
            *("learning_rate", "optimizer_epsilon", "max_grad_norm", "hours"),
            "checkpoint_period_minutes",
        ),
        lambda value: value > 0,
        "a number above 0",
    ),
    (
        ("sticky_actions", "discount", "epsilon_start", "epsilon_end", "evaluation_epsilon"),
        lambda value: 0 <= value <= 1,
        "a number from 0 to 1",
    ),
    (("rmsprop_decay",), lambda value: 0 <= value < 1, "a number from 0 to below 1"),
    (("target_tau",), lambda value: 0 < value <= 1, "a number above 0 and at most 1"),
)
