//! CUDA graphs of decodes, recorded once for some numbers of sequences. Steps are padded to the next of them.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use candlepower_gpu::Graph;
use candlepower_models::WorkspaceSize;

use crate::Result;

/// The graphs of a model, by the number of sequences.
pub(crate) struct Graphs {
    buckets: Vec<usize>,
    captured: HashMap<usize, (Graph, Tensor)>,
}

impl Graphs {
    /// No graphs: every step is launched as it is.
    fn none() -> Self {
        Self { buckets: Vec::new(), captured: HashMap::new() }
    }

    /// Graphs for all decodes of steps of up to `size`, or none where they are not `enabled`.
    pub(crate) fn of(size: &WorkspaceSize, enabled: bool) -> Self {
        if enabled { Self::up_to(size.max_rows.min(size.max_seqs)) } else { Self::none() }
    }

    /// Graphs for up to `max_seqs` sequences. Fewer graphs mean more padding, more graphs a longer start. Here a quarter is
    /// padded at most.
    fn up_to(max_seqs: usize) -> Self {
        let steps = [1, 2, 4]
            .into_iter()
            .chain((8..64).step_by(8))
            .chain((64..128).step_by(16))
            .chain((128..).step_by(32));
        let mut buckets: Vec<usize> = steps.take_while(|bucket| *bucket < max_seqs).collect();
        buckets.push(max_seqs);
        Self { buckets, captured: HashMap::new() }
    }

    /// Numbers of sequences, ascending.
    pub(crate) fn buckets(&self) -> &[usize] {
        &self.buckets
    }

    /// The largest number of sequences with a graph; 0 without graphs.
    pub(crate) fn max_seqs(&self) -> usize {
        self.buckets.last().copied().unwrap_or(0)
    }

    /// The smallest number of sequences with a graph that holds `seqs`.
    pub(crate) fn bucket(&self, seqs: usize) -> Option<usize> {
        self.buckets.iter().copied().find(|bucket| *bucket >= seqs)
    }

    /// Runs `forward` once, so that its kernels are loaded, and records it where the device can. `forward` returns the
    /// logits, in a tensor that later launches overwrite.
    pub(crate) fn capture(
        &mut self,
        device: &Device,
        bucket: usize,
        forward: impl Fn() -> Result<Tensor, candlepower_models::Error>,
    ) -> Result<()> {
        forward()?;
        if !Graph::supported(device) {
            return Ok(());
        }
        let mut logits = None;
        let mut failed = None;
        let graph = Graph::capture(device, || {
            match forward() {
                Ok(tensor) => logits = Some(tensor),
                Err(error) => failed = Some(error),
            }
            Ok(())
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        let logits = logits.expect("the forward returned its logits or failed");
        self.captured.insert(bucket, (graph?, logits));
        Ok(())
    }

    /// Launches the graph of `bucket`, and returns its logits; `None` where there is no graph.
    pub(crate) fn launch(&self, bucket: usize) -> Result<Option<Tensor>> {
        let Some((graph, logits)) = self.captured.get(&bucket) else { return Ok(None) };
        graph.launch()?;
        Ok(Some(logits.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_padded_and_everything_has_a_bucket() {
        let graphs = Graphs::up_to(200);
        assert_eq!(graphs.buckets()[..5], [1, 2, 4, 8, 16]);
        assert_eq!((graphs.max_seqs(), Graphs::none().max_seqs()), (200, 0));
        assert!(graphs.buckets().windows(2).all(|pair| pair[0] < pair[1]));
        for seqs in 1..=200 {
            let bucket = graphs.bucket(seqs).unwrap();
            assert!(bucket >= seqs && bucket < 2 * seqs.max(1), "{seqs} in {bucket}");
        }
        assert_eq!(graphs.bucket(201), None);
        assert_eq!(Graphs::up_to(1).buckets(), [1]);
        assert_eq!(Graphs::none().bucket(1), None);
    }
}
