//! CUDA graphs of decodes, recorded once for some numbers of sequences. Steps are padded to the next of them.

use std::collections::HashMap;
use std::env;

use candle_core::{Device, Tensor};
use candlepower_gpu::{Graph, LaunchShape};
use candlepower_models::WorkspaceSize;

use crate::{Error, Result};

/// The environment variable with the longest contexts that are not divided among thread blocks.
const WHOLE_CONTEXTS: &str = "CANDLEPOWER_WHOLE_CONTEXTS";

/// The graphs of a model, by the number of sequences and the shape of the launch of attention.
pub(crate) struct Graphs {
    buckets: Vec<usize>,
    /// The longest context of a step whose contexts are not divided; 0: each step's contexts are.
    whole_contexts: u32,
    captured: HashMap<(usize, LaunchShape), (Graph, Tensor)>,
}

impl Graphs {
    /// No graphs: every step is launched as it is.
    fn none() -> Self {
        Self { buckets: Vec::new(), whole_contexts: 0, captured: HashMap::new() }
    }

    /// Graphs for all decodes of steps of up to `size`, or none where they are not `enabled`.
    ///
    /// # Errors
    /// `CANDLEPOWER_WHOLE_CONTEXTS` is no number of tokens.
    pub(crate) fn of(size: &WorkspaceSize, enabled: bool) -> Result<Self> {
        let whole_contexts = whole_contexts(env::var(WHOLE_CONTEXTS).ok().as_deref())?;
        Ok(match enabled {
            true => Self { whole_contexts, ..Self::up_to(size.max_rows.min(size.max_seqs)) },
            false => Self::none(),
        })
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
        Self { buckets, whole_contexts: 0, captured: HashMap::new() }
    }

    /// The largest number of sequences with a graph; 0 without graphs.
    pub(crate) fn max_seqs(&self) -> usize {
        self.buckets.last().copied().unwrap_or(0)
    }

    /// The smallest number of sequences with a graph that holds `seqs`.
    pub(crate) fn bucket(&self, seqs: usize) -> Option<usize> {
        self.buckets.iter().copied().find(|bucket| *bucket >= seqs)
    }

    /// The graphs to be recorded: numbers of sequences, ascending, each with the shapes of launches.
    pub(crate) fn all(&self) -> Vec<(usize, LaunchShape)> {
        let shapes: &[LaunchShape] = match self.whole_contexts {
            0 => &[LaunchShape::Fixed],
            _ => &[LaunchShape::Fixed, LaunchShape::FixedWhole],
        };
        let of =
            |bucket: &usize| -> Vec<_> { shapes.iter().map(|shape| (*bucket, *shape)).collect() };
        self.buckets.iter().flat_map(of).collect()
    }

    /// The shape of the launch for a step with these contexts.
    pub(crate) fn shape(&self, contexts: &[u32]) -> LaunchShape {
        match contexts.iter().all(|len| *len <= self.whole_contexts) {
            true => LaunchShape::FixedWhole,
            false => LaunchShape::Fixed,
        }
    }

    /// Runs `forward` once, so that its kernels are loaded, and records it where the device can. `forward` returns the
    /// logits, in a tensor that later launches overwrite.
    pub(crate) fn capture(
        &mut self,
        device: &Device,
        (bucket, shape): (usize, LaunchShape),
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
        self.captured.insert((bucket, shape), (graph?, logits));
        Ok(())
    }

    /// Launches the graph of a bucket and a shape, and returns its logits; `None` where there is no graph.
    pub(crate) fn launch(&self, graph: (usize, LaunchShape)) -> Result<Option<Tensor>> {
        let Some((graph, logits)) = self.captured.get(&graph) else { return Ok(None) };
        graph.launch()?;
        Ok(Some(logits.clone()))
    }
}

/// The number of tokens in `text`; 0 without a text.
fn whole_contexts(text: Option<&str>) -> Result<u32> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(0) };
    text.trim().parse().map_err(|_| Error::Config {
        name: WHOLE_CONTEXTS,
        value: text.to_owned(),
        reason: "write a number of tokens, such as 512, or leave it out",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_contexts_have_graphs_of_their_own_if_they_are_asked_for() {
        let graphs = Graphs::up_to(8);
        assert_eq!(graphs.all().len(), graphs.buckets.len());
        assert_eq!(graphs.shape(&[1, 1]), LaunchShape::Fixed);
        let graphs = Graphs { whole_contexts: 512, ..Graphs::up_to(8) };
        assert_eq!(graphs.all()[..2], [(1, LaunchShape::Fixed), (1, LaunchShape::FixedWhole)]);
        assert_eq!(graphs.shape(&[512, 1]), LaunchShape::FixedWhole);
        assert_eq!(graphs.shape(&[1, 513]), LaunchShape::Fixed);
        assert_eq!(whole_contexts(None).unwrap(), 0);
        assert_eq!(whole_contexts(Some("")).unwrap(), 0);
        assert_eq!(whole_contexts(Some("512")).unwrap(), 512);
        let error = whole_contexts(Some("many")).unwrap_err().to_string();
        assert_eq!(
            error,
            "CANDLEPOWER_WHOLE_CONTEXTS is many: write a number of tokens, such as 512, or leave it out"
        );
    }

    #[test]
    fn little_is_padded_and_everything_has_a_bucket() {
        let graphs = Graphs::up_to(200);
        assert_eq!(graphs.buckets[..5], [1, 2, 4, 8, 16]);
        assert_eq!((graphs.max_seqs(), Graphs::none().max_seqs()), (200, 0));
        assert!(graphs.buckets.windows(2).all(|pair| pair[0] < pair[1]));
        for seqs in 1..=200 {
            let bucket = graphs.bucket(seqs).unwrap();
            assert!(bucket >= seqs && bucket < 2 * seqs.max(1), "{seqs} in {bucket}");
        }
        assert_eq!(graphs.bucket(201), None);
        assert_eq!(Graphs::up_to(1).buckets, [1]);
        assert_eq!(Graphs::none().bucket(1), None);
    }
}
