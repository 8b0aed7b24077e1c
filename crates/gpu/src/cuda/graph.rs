//! CUDA graphs.

use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::CudaGraph;
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstreamCaptureMode,
};

use super::launch::driver;
use candlepower_kernels::{Error, Result};

const KERNEL: &str = "graph";

/// Launches on a device's stream, recorded as a CUDA graph.
pub(crate) struct Graph(CudaGraph);

// SAFETY: a graph's handles belong to its context, not to a thread; `launch` makes the context current on the calling
// thread, and a graph is launched by one thread at a time, through the engine that owns it.
unsafe impl Send for Graph {}

impl Graph {
    pub(crate) fn capture(
        device: &CudaDevice,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let stream = device.cuda_stream();
        let error = |error| driver(KERNEL, error);
        // CUDA loads kernels lazily, at their first launch. The stricter capture modes forbid that during capture.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).map_err(error)?;
        let launched = launch();
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        // The capture ends even if a launch failed, or the stream would record everything from then on.
        let captured = stream.end_capture(flags);
        launched?;
        let graph = captured.map_err(error)?.ok_or_else(|| Error::Cuda {
            kernel: KERNEL,
            message: "nothing was launched".into(),
        })?;
        // The first replay would otherwise upload the graph, in the middle of a step.
        graph.upload().map_err(error)?;
        Ok(Self(graph))
    }

    pub(crate) fn launch(&self) -> Result<()> {
        self.0.launch().map_err(|error| driver(KERNEL, error))
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Graph")
    }
}
