"""What a method is to a run, and to the engine: it drafts, and watches what verification saw."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from specbench.config import RunConfig
from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.engine.batch import Batch
    from specbench.engine.engine import Engine
    from specbench.engine.forward import ScoreCollector, Tap
    from specbench.engine.model_config import ModelConfig


class Parameters(BaseModel):
    """Settings of a method; every field has a default and its range."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Capabilities:
    """What a method can do, so that what cannot run is refused before a model is loaded."""

    batch: bool = True
    sampling: bool = True
    tree: bool = False
    needs_draft_weights: bool = False
    max_context: int | None = None
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Tunable:
    """What `specbench tune` may choose of a method, and where it looks by default: two grids.

    Attributes
    ----------
    budget : str or None
        The setting that says how much a draft reads, or how wide it is; None for a method without
        one.
    ratios : tuple of float
        Values of `budget`, ascending.
    length : str
        The setting that says how many tokens may be accepted: gamma, or the depth of trees.
    gammas : tuple of int
        Values of `length` above 0, ascending; empty for a method where it is fixed.
    probe_gamma : int or None
        The length at which budgets are compared by acceptance length: long enough to tell them
        apart.
    options : callable, optional
        The options of a run that stand for a budget and a length; by default those of their names.
    derived : tuple of str
        Options that `options` sets besides.
    """

    budget: str | None = None
    ratios: tuple[float, ...] = ()
    length: str = "gamma"
    gammas: tuple[int, ...] = ()
    probe_gamma: int | None = None
    options: Callable[[float | None, int], dict[str, Any]] | None = None
    derived: tuple[str, ...] = ()


@dataclass
class Draft:
    """A chain of drafts for each running request (trees: `TreeDraft`).

    Attributes
    ----------
    tokens : Tensor
        int64 `[R, gamma]`.
    probs : Tensor or None
        float `[R, gamma, vocab]`, the distributions that the tokens were drawn from after
        temperature, top-k and top-p. None stands for one-hot: the draft was not random.
    counts : Tensor or None
        int64 `[R]`, how many of a row's tokens, from the first, are drafts: what follows is neither
        verified nor counted. None stands for gamma of them in every row.
    """

    tokens: Tensor
    probs: Tensor | None = None
    counts: Tensor | None = None


@dataclass
class TreeDraft:
    """A tree of drafts for each running request, judged by one verification.

    The root is the last committed token, which is no node. At every node, the root included, the
    target's own token is chosen (arg-max, or drawn from its distribution), and the child that
    equals it, if any, is where the next is chosen. So the output is the target's at any temperature
    and whatever the tree holds, as long as it was fixed before: the tree needs no probabilities.

    A method that returns trees says by `gamma` how deep they are and by `nodes` how large, at most.
    A node's rotary position is the root's plus its depth; while it is verified, its KV stands at
    the root's position plus 1 plus its index. That of the accepted path is moved to the positions
    of a chain before `observe`, so that methods see no difference there. `kernels/tree_attention`
    serves the verification and drafters alike.

    Attributes
    ----------
    tokens : Tensor
        int64 `[R, N]`; siblings should differ, since of equal ones only the first is ever reached.
    parents : Tensor
        int64 `[R, N]`, a node's parent by its index, below the node's own; -1 for the root.
    counts : Tensor or None
        int64 `[R]`, how many of a row's nodes, from the first, are drafts: what follows only has to
        be tokens. None stands for all N in every row.
    """

    tokens: Tensor
    parents: Tensor
    counts: Tensor | None = None


class Method(ABC):
    """One way to decode: its name, its settings, what it can do."""

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str | None] = None
    lossless: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities()
    parameters_type: ClassVar[type[Parameters]] = Parameters
    tunable: ClassVar[Tunable] = Tunable()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    @property
    def gamma(self) -> int:
        """Drafts of one iteration, at most; 0 for a method that does not draft.

        Of trees, the depth: the most that one verification can accept.
        """
        return 0

    @classmethod
    def from_config(cls, config: RunConfig) -> Self:
        """The method with the settings of `config` that it has.

        Raises
        ------
        UsageError
            A setting out of the method's range.
        """
        known = cls.parameters_type.model_fields
        chosen = {key: value for key, value in config.method_settings().items() if key in known}
        try:
            return cls(cls.parameters_type(**chosen))
        except ValidationError as error:
            detail = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'parameters'}: {e['msg']}"
                for e in error.errors()
            )
            raise UsageError(f"{cls.name}: {detail}") from error

    @classmethod
    def in_all(cls, config: RunConfig) -> bool:
        """Whether ``--method all`` includes this method: where `config` has all that it needs."""
        return True

    @classmethod
    def variants(cls) -> "dict[str, type[Method]]":
        """The classes that this method's arms are of, by the name that records carry."""
        return {cls.name: cls}

    @classmethod
    def arms(cls, config: RunConfig) -> "dict[str, Method]":
        """The arms that `config` asks of this method, by the name that records carry."""
        return {name: kind.from_config(config) for name, kind in cls.variants().items()}

    def report(self) -> dict[str, Any]:
        """The settings for the records."""
        return self.parameters.model_dump()


class EngineMethod(Method):
    """A method that specbench's own engine runs, which calls it in this order.

    `bind` once; `admit` for each request after its prefill; then `draft`, and after the
    verification `observe`, every iteration. All of a request's state lives in its row.

    What the verification hands over: to `collector`, attention scores of every layer; to `tap`,
    each layer's queries; in `batch.deepest`, which of its rows is the last accepted draft's.

    Attributes
    ----------
    capturable : bool
        Whether `draft`, `collector` and `observe` can be captured in a CUDA graph: tensors of fixed
        shape and place, no decision of the host.
    drafts_with_target : bool
        Whether a draft step is a forward of the target that reads `entries_read` in every layer.
    """

    capturable: ClassVar[bool] = True
    drafts_with_target: ClassVar[bool] = False

    @property
    def nodes(self) -> int:
        """Nodes of one iteration's tree, at most; 0 for a method that drafts chains."""
        return 0

    def memory_bytes(
        self, model: "ModelConfig", rows: int, max_len: int, dtype: torch.dtype
    ) -> int:
        """Most bytes that the method will hold for `rows` requests of `max_len` tokens.

        `dtype` is the KV cache's.
        """
        return 0

    def check(self, config: RunConfig, model: "ModelConfig", max_len: int) -> None:
        """Refuse what cannot run, before any weight is loaded.

        Parameters
        ----------
        config : RunConfig
            With everything chosen but the batch size.
        model : ModelConfig
            The target.
        max_len : int
            Prompt and new tokens of a request, at most.

        Raises
        ------
        SpecbenchError
        """

    def entries_read(self, length: int) -> int:
        """KV entries that a draft reads of a prefix of `length`; settings that agree are equal."""
        return length

    def bind(self, engine: "Engine") -> None:
        """Allocate what the method needs for the engine's rows, layers and lengths."""
        vars(self).setdefault("_before_bind", frozenset(vars(self)))
        self.engine = engine

    def page_bytes(self, model: "ModelConfig", dtype: torch.dtype) -> int:
        """What the method holds beside each page of the engine's KV, also of waiting prompts."""
        return 0

    @property
    def prompt_tail(self) -> int:
        """Last tokens of a prompt whose prefill the method must see; at least 1."""
        return 1

    def is_bound_to(self, engine: "Engine") -> bool:
        """Whether `bind` was last called with `engine`."""
        return getattr(self, "engine", None) is engine

    def unbind(self) -> None:
        """Let go of the engine and of everything that `bind` allocated."""
        before = vars(self).pop("_before_bind", vars(self))
        for name in [name for name in vars(self) if name not in before]:
            delattr(self, name)

    @abstractmethod
    def draft(self, batch: "Batch") -> Draft | TreeDraft | None:
        """Drafts for every row, or None for none (autoregressive)."""

    def collector(self, batch: "Batch") -> "ScoreCollector | None":
        """Where the next verification leaves its attention scores, if the method wants them.

        Of chains: a verification of trees has no use for it.
        """
        return None

    def tap(self, batch: "Batch") -> "Tap | None":
        """What the next verification calls in every layer with its queries, if the method wants."""
        return None

    def prefill_collector(
        self, row: int, begin: int, end: int, length: int
    ) -> "ScoreCollector | None":
        """The collector of the prefill's chunk of positions `begin` to `end` of `row`'s prompt.

        The prompt has `length` tokens; its last chunk is the one that ends there.
        """
        return None

    def admit(self, row: int, batch: "Batch") -> None:
        """A request took `row` and its prefill is done."""

    def observe(self, batch: "Batch") -> None:
        """A verification ended and its tokens are committed."""
