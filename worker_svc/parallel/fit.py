"""Whether a model can be split over ranks, said before anything of it is loaded.

Reads the model's config alone and imports no torch. The model itself checks again.
"""

from __future__ import annotations

from pagewire.engine_config import EngineConfig
from pagewire.kit.errors import InvalidRequestError
from pagewire.model_source import resolve_model
from worker_svc.models.config import LlamaConfig
from worker_svc.models.config_fields import read_config_fields
from worker_svc.models.shape import ModelShape, read_shape
from worker_svc.parallel.layout import RankLayout
from worker_svc.parallel.shards import check_layout

REASON = "PARALLEL_SIZE"


def check_model_fits(config: EngineConfig, layout: RankLayout) -> None:
    """Refuse sizes that the configured model cannot be split by.

    Raises:
        InvalidRequestError: The message names the sizes that are possible.
    """
    try:
        source = resolve_model(config.model.model, config.load.revision)
        shape: ModelShape = read_shape(read_config_fields(source), config.model.model_impl)
        if isinstance(shape, LlamaConfig):
            check_layout(shape, layout)
            return
    except ValueError as error:
        text = ": ".join(str(part) for part in error.args)
        raise InvalidRequestError(f"the model cannot be split: {text}", reason=REASON) from error
    raise InvalidRequestError(
        f"the model cannot be split: architecture {shape.architecture} runs on the Transformers "
        "backend, with which --tensor-parallel-size and --pipeline-parallel-size must be 1",
        reason=REASON,
    )
