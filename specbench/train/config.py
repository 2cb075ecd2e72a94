"""What a training is asked to do, in the same form as a run's configuration."""

from pathlib import Path
from typing import Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

# what may differ between the parts of one training: nothing that the curve depends on
FREE = ("output", "resume", "encode_only", "max_minutes", "save_every", "threads")


class TrainConfig(BaseModel):
    """The options of `specbench train longspec`."""

    # built when first used: the help needs the fields alone
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    model: str | None = Field(
        None, description="Target: hub id, Hugging Face folder, .gguf file, or dummy:<config>."
    )
    model_revision: str | None = Field(None, description="Revision of the model on the hub.")
    trust_remote_code: bool = Field(
        False, description="Run tokenizer and model code that comes with the model."
    )
    rope_scaling: str | None = Field(
        None, description="Override the RoPE scaling: 'yarn:4', 'linear:2', 'dynamic:2'."
    )
    data: tuple[str, ...] = Field(
        (), description="Text: a folder or file of text or JSONL, or hub:OWNER/NAME[:CONFIG]."
    )
    eval_data: tuple[str, ...] | None = Field(
        None, description="Text to evaluate on; by default one document in a hundred of the data."
    )
    text_field: str = Field("text", description="Field of a row that holds the text.")
    output: Path | None = Field(None, description="Folder for checkpoints, curves and the draft.")
    resume: bool = Field(False, description="Continue the training in the output folder.")
    encode_only: bool = Field(
        False, description="Stop when the text is encoded, which takes no accelerator."
    )
    max_minutes: PositiveFloat | None = Field(
        None, description="Stop with a checkpoint after so many minutes; --resume continues."
    )

    window: PositiveInt = Field(512, description="Tokens that the draft's self-attention sees.")
    depth: PositiveInt = Field(
        5, le=64, description="Largest lag of the target's KV: the deepest draft (the paper has 4)."
    )
    flash_noise: bool = Field(
        True, description="Let the target's KV lag by 1 to depth tokens, drawn anew each batch."
    )
    anchor_offset: bool = Field(
        True, description="Move all positions but the first four to a random place."
    )

    short_len: PositiveInt = Field(1024, description="Tokens of a row in the short stage.")
    short_batch: PositiveInt = Field(128, description="Rows of an optimizer step.")
    short_steps: NonNegativeInt = Field(1000, description="Optimizer steps.")
    short_lr: PositiveFloat = Field(5e-4, description="Highest learning rate.")
    long_len: PositiveInt = Field(8192, description="Tokens of a row in the long stage.")
    long_batch: PositiveInt = Field(16, description="Rows of an optimizer step.")
    long_steps: NonNegativeInt = Field(100, description="Optimizer steps.")
    long_lr: PositiveFloat = Field(1e-4, description="Highest learning rate.")
    warmup: float = Field(0.1, ge=0, lt=1, description="Share of a stage's steps that warm up.")
    weight_decay: float = Field(0.1, ge=0, description="AdamW's, on matrices.")
    clip: PositiveFloat = Field(1.0, description="Largest norm of the gradient.")
    micro_tokens: PositiveInt = Field(
        32768, description="Tokens of one forward, at most; gradients of several are summed."
    )

    eval_every: PositiveInt = Field(100, description="Steps between evaluations.")
    eval_tokens: PositiveInt = Field(32768, description="Tokens of an evaluation.")
    save_every: PositiveInt = Field(200, description="Steps between checkpoints.")
    seed: NonNegativeInt = Field(0, lt=2**31, description="Of weights, order, lags and offsets.")
    device: Literal["cpu", "cuda"] | None = Field(None, description="Where to train.")
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Type of the target and of the draft's forward; masters are float32."
    )
    threads: PositiveInt | None = Field(None, description="CPU threads of torch.")

    @model_validator(mode="after")
    def _lengths_suffice(self) -> Self:
        if self.short_steps + self.long_steps == 0:
            raise ValueError("short_steps and long_steps are both 0: there is nothing to do")
        for name in ("short", "long"):
            if getattr(self, f"{name}_steps") and getattr(self, f"{name}_len") <= self.depth:
                raise ValueError(f"{name}_len must exceed depth ({self.depth})")
        return self
