"""The proposer that vLLM calls to refuse, to allocate and to draft."""

import atexit
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from specbench.engine.compute import Compute
from specbench.integrations.vllm import refusals
from specbench.integrations.vllm.choice import Choice, StreamChoice, widest
from specbench.integrations.vllm.counters import LOG, Counters
from specbench.integrations.vllm.drafter import Drafter, drafting_compute
from specbench.integrations.vllm.hub import Hub
from specbench.integrations.vllm.layout import split_cache
from specbench.integrations.vllm.memory import check_memory, drafter_bytes
from specbench.integrations.vllm.plugin import register
from specbench.integrations.vllm.replay import Replay
from specbench.integrations.vllm.rounds import FIELDS, Ints, plan_round
from specbench.integrations.vllm.settings import read_settings
from specbench.integrations.vllm.target import local_shape, model_shape, view
from specbench.integrations.vllm.vegas_choice import VegasChoice
from specbench.methods.magicdec.stream import StreamParameters


class VegasProposer:
    """Drafts of the target itself, which reads a small part of its KV.

    Named by ``--speculative-config '{"model": "specbench.integrations.vllm.VegasProposer", …}'``,
    with ``--attention-backend CUSTOM``, which leaves the rows that the drafter looks at.

    Parameters
    ----------
    vllm_config : VllmConfig

    Raises
    ------
    UsageError
        Settings that are wrong, or what the plug-in does not run with; vLLM's start ends with it.
    """

    def __init__(self, vllm_config: Any) -> None:
        import vllm

        # the entry point may be filtered out, or specbench only be on the path
        register()
        self.config = vllm_config
        refusals.check(vllm_config, vllm.__version__)
        self.settings = read_settings(vllm_config)
        self.gamma = vllm_config.speculative_config.num_speculative_tokens
        self.shape = model_shape(vllm_config)

    def load_model(self, model: nn.Module) -> None:
        """Allocate everything, while vLLM still counts what it leaves for its KV cache.

        Raises
        ------
        UsageError
            Weights or attention layers that the drafter cannot read, or too much memory.
        """
        config, settings = self.config, self.settings
        layers = config.compilation_config.static_forward_context
        refusals.check_backend(layers)
        self.layers = list(layers.values())
        rows = config.scheduler_config.max_num_seqs
        max_len, dtype = config.model_config.max_model_len, config.model_config.dtype
        size = config.parallel_config.tensor_parallel_size
        self.local = local_shape(self.shape, size)
        target = view(model, self.local, max_len, dtype)
        device = target.cos.device
        kernels = device.type == "cuda"
        width = widest(settings.parameters, max_len)
        held = drafter_bytes(self.local, rows, self.gamma, max_len, width, dtype)
        total = check_memory(held, device)
        LOG.info("specbench: the drafter holds %.2f GiB for %d requests", total / 2**30, rows)

        self.counters = Counters(device, settings.log_seconds, settings.stats)
        sizes = self.local, rows, self.gamma, max_len, dtype, device
        self.hub = Hub(*sizes, self.counters, kernels)
        ranks, pool = None, self.hub.pool
        if size > 1:
            from specbench.integrations.vllm.parallel import ParallelCompute, join

            ranks = join(model, self.shape, size)
            compute: Compute = ParallelCompute(target, pool, ranks)
            if ranks.shard.rank > 0:
                self.counters.silence()
        else:
            compute = drafting_compute(target, pool, kernels)
        choice: Choice
        if isinstance(settings.parameters, StreamParameters):
            choice = StreamChoice(settings.parameters, rows, max_len, device)
        else:
            choice = VegasChoice(
                settings.parameters, self.local, rows, max_len, dtype, device, kernels, ranks
            )
        self.drafter = Drafter(compute, self.hub, choice, rows, max_len)
        self.replay = Replay(self.drafter, settings.graphs, ranks)
        self._planned = torch.zeros(
            rows, len(FIELDS), dtype=torch.int64, device="cpu", pin_memory=kernels
        )
        self._cache_at = 0
        for index, layer in enumerate(self.layers):
            layer.impl.layer_index, layer.impl.hub = index, self.hub
        atexit.register(self.counters.report)

    @torch.inference_mode()
    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[Any],
        token_ids_cpu: NDArray[Any],
        slot_mappings: Any = None,
    ) -> Tensor:
        """Drafts of each request of the batch that was just verified.

        Parameters
        ----------
        sampled_token_ids : sequence of sequences of int
            New tokens of each row; none for a prompt that is not computed to its end.
        num_tokens_no_spec, token_ids_cpu : array
            Tokens of each row, and which they are, with the new ones.
        slot_mappings
            Not needed.

        Returns
        -------
        Tensor
            int64 `[rows, gamma]` on the device. Of rows whose prompt is not at its end vLLM drops
            them: they are tokens without a meaning.
        """
        rows, step = len(sampled_token_ids), self.hub.take()
        if step is None or rows == 0:
            device = self.drafter.drafts.device
            return torch.zeros(rows, self.gamma, dtype=torch.int64, device=device)
        planned = plan_round(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, step)
        self.counters.begin()
        self._bind_caches()
        staged = self._planned[:rows]
        staged.copy_(torch.from_numpy(planned))
        self.drafter.planned[:rows].copy_(staged, non_blocking=True)
        self.drafter.see(step.block_table, rows)
        drafts = self.replay.run(rows)
        self.counters.end(planned, int(self._kept(planned)))
        return drafts.clone()

    def _kept(self, planned: Ints) -> int:
        return int(self.drafter.choice.keep(torch.from_numpy(planned)).sum())

    def _bind_caches(self) -> None:
        """Look at vLLM's KV cache where it is now: profiling has another than serving."""
        at = self.layers[0].kv_cache.data_ptr()
        if at != self._cache_at:
            heads = self.local.num_kv_heads, self.local.head_dim
            self.drafter.caches = [split_cache(layer.kv_cache, *heads) for layer in self.layers]
            self.replay.forget()
            self._cache_at = at
