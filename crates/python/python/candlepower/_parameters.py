"""The keyword arguments of a deployment."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from ._types import Backend


class Parameters(TypedDict, total=False):
    """What both frameworks take. None, as leaving it out, gives the default."""

    gpu_count: int | None
    """GPUs to allocate; 0 computes on the CPU. Default: 1, or the CPU where there is none."""
    tensor_parallel_size: int | None
    """GPUs over which each layer is split. Default: gpu_count."""
    max_model_len: int | None
    """Longest sequence, prompt and output together, in tokens. Default: the model's own limit."""
    quantization: Literal["awq", "gptq", "squeezellm", "fp8"] | None
    """What the weights must have. Default: as the model's config.json says."""
    gpu_models: Sequence[str] | None
    """Names of GPUs that will do, or parts of them such as H100."""
    min_gpu_memory_gb: int | None
    """Least memory of a GPU."""
    memory: str | None
    """Main memory that the server may take, a Kubernetes quantity. Default: 16Gi."""
    cpu: str | None
    """CPUs that are set aside for it, a Kubernetes quantity such as 4 or 500m; the server computes on as many threads.
    Default: none, and a thread for each core."""
    env: Mapping[str, str] | None
    """More variables of the server's environment. Values are stored in clear, unless a name has TOKEN, KEY, SECRET,
    PASSWORD, PASSWD or CREDENTIAL in it."""
    timeout: int | None
    """Seconds to wait until it is ready. Default: 600."""
    dtype: Literal["auto", "float32", "float", "float16", "half", "bfloat16"] | None
    """Type that the weights are kept in. Default: auto, as stored."""
    served_model_name: str | None
    """Name under which requests ask for the model. Default: the model's own."""
    api_key: str | None
    """Key that clients must send. It is never written to a file."""
    enforce_eager: bool | None
    """No CUDA graphs."""
    image: str | None
    """Container image, for backends that run one. Default: CANDLEPOWER_IMAGE, or this version's for the CPU or the GPUs."""
    replicas: int | None
    """Servers side by side; more than one needs the backend kubernetes. Default: 1."""
    ttl_seconds: int | None
    """Seconds after which the deployment deletes itself, with the backend process. Default: never."""
    port: int | None
    """Port of the server. Default: a free one."""
    backend: Backend | None
    """Where to run. Default: the client's, or process."""
    hub_cache: str | None
    """Where containers keep downloads: a folder by its full path, or the name of a volume (docker) or of a persistent volume
    claim (kubernetes). A folder is there already, and user 10001 may write it. Default: the volume candlepower (docker), a folder that goes with the pod (kubernetes)."""
    update: bool | None
    """Change the deployment that has the name, where it has other parameters: the new server is ready before the old one ends,
    where there is room for both. Where the new one fails, what ran before is kept. Default: NameInUseError."""
    keep_on_failure: bool | None
    """Leave a deployment that failed to be looked at, until it is deleted."""


class BlazeParameters(Parameters, total=False):
    """What `deploy_blaze` takes beside name, model and on_progress."""

    gpu_memory_utilization: float | None
    """Part of a GPU's memory that the server may take, above 0 and at most 1."""


class PrismParameters(Parameters, total=False):
    """What `deploy_prism` takes beside name, model and on_progress."""

    context_length: int | None
    """Another name of max_model_len."""
    mem_fraction_static: float | None
    """Part of a GPU's memory that the server may take, above 0 and at most 1."""
