"""Keyword arguments of a deployment."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from ._types import Backend


class Parameters(TypedDict, total=False):
    """Parameters of both frameworks. None has the same effect as leaving a parameter out: the default."""

    gpu_count: int | None
    """GPUs to allocate; 0 computes on the CPU. Default: 1, or the CPU if there is none."""
    tensor_parallel_size: int | None
    """GPUs over which each layer is split. Default: gpu_count."""
    max_model_len: int | None
    """Longest sequence, prompt and output together, in tokens. Default: the model's own limit."""
    quantization: Literal["awq", "gptq", "squeezellm", "fp8"] | None
    """Quantization that the weights must have. Default: the one in config.json."""
    gpu_models: Sequence[str] | None
    """Names of acceptable GPUs, or parts of names such as H100."""
    min_gpu_memory_gb: int | None
    """Least memory of a GPU, in units of 10^9 bytes."""
    memory: str | None
    """Main memory that the server may use, a Kubernetes quantity. Default: 16Gi."""
    cpu: str | None
    """CPUs that are reserved, a Kubernetes quantity such as 4 or 500m. The server uses as many threads. Default: no
    reservation, and a thread for each core."""
    env: Mapping[str, str] | None
    """Further variables of the server's environment. Values are stored in clear text, unless a name contains TOKEN,
    KEY, SECRET, PASSWORD, PASSWD or CREDENTIAL."""
    timeout: int | None
    """Seconds to wait for readiness. Default: 600."""
    dtype: Literal["auto", "float32", "float", "float16", "half", "bfloat16"] | None
    """Type of the weights in memory. Default: auto, the type of the checkpoint."""
    served_model_name: str | None
    """Name of the model in requests. Default: the model's own."""
    api_key: str | None
    """Key that clients must send. It is never written to a file."""
    enforce_eager: bool | None
    """Disables CUDA graphs."""
    image: str | None
    """Container image, for backends that run containers. Default: CANDLEPOWER_IMAGE, or this version's image."""
    replicas: int | None
    """Number of servers. More than one needs the backend kubernetes. Default: 1."""
    ttl_seconds: int | None
    """Seconds after which the deployment deletes itself. Only the backend process supports it. Default: never."""
    port: int | None
    """Port of the server. Default: a free one."""
    backend: Backend | None
    """Backend. Default: the client's, or process."""
    hub_cache: str | None
    """Storage for downloads of containers: a folder by its absolute path, or the name of a volume (docker) or of a
    persistent volume claim (kubernetes). A folder must exist, and user 10001 must be able to write to it. Default:
    the volume candlepower (docker), or storage that lives as long as the pod (kubernetes).
    """
    update: bool | None
    """Changes an existing deployment of this name that has other parameters. The new server is ready before the old
    one ends, if there is room for both. If the new server fails, the old one goes on. Default: such a deployment
    raises NameInUseError.
    """
    keep_on_failure: bool | None
    """Keeps a deployment that failed, for inspection, until it is deleted."""


class BlazeParameters(Parameters, total=False):
    """Keyword arguments of `deploy_blaze` besides name, model and on_progress."""

    gpu_memory_utilization: float | None
    """Part of a GPU's memory that the server may use, above 0 and at most 1."""


class PrismParameters(Parameters, total=False):
    """Keyword arguments of `deploy_prism` besides name, model and on_progress."""

    context_length: int | None
    """Alias of max_model_len."""
    mem_fraction_static: float | None
    """Part of a GPU's memory that the server may use, above 0 and at most 1."""
