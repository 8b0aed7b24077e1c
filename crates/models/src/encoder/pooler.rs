//! From the hidden states of a text to its vector: pooling, dense layers, and the length.
//!
//! Source: sentence-transformers, modules `Pooling`, `Dense` and `Normalize`.

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{
    CheckpointFiles, DenseSpec, EncoderTensor, HeadAct, Pooling, SentenceSettings,
};
use candlepower_kernels::{Weight, WeightRows, linear};

use super::{
    pooling::{normalize, pool},
    score::activate,
    weights::{self, CONFIG_FILE},
};
use crate::error::{Error, Result};

/// Makes a text's vector of its hidden states.
pub struct Pooler {
    pooling: Pooling,
    /// Width of the hidden states.
    width: usize,
    dense: Vec<Dense>,
    normalizes: bool,
}

/// `act(x W^T + b)`.
struct Dense {
    weight: Weight,
    bias: Option<Tensor>,
    act: Option<HeadAct>,
}

impl Pooler {
    /// Loads the modules that the sentence-transformers files beside a model describe, for hidden states of `width` elements.
    ///
    /// # Errors
    /// The weights of a dense layer are missing, damaged, or of another shape.
    pub fn load(
        files: &CheckpointFiles,
        sentence: &SentenceSettings,
        pooling: Pooling,
        width: usize,
    ) -> Result<Self> {
        // Dense layers follow each other by the sizes that were checked; the first one follows the model.
        if let Some(first) = sentence.dense.first().filter(|first| first.inputs != width) {
            return Err(Error::TensorShape {
                name: format!("linear.weight of {}", first.file),
                found: vec![first.outputs, first.inputs],
                expected: vec![first.outputs, width],
                file: CONFIG_FILE.to_owned(),
            });
        }
        let dense = sentence.dense.iter().map(|spec| Dense::load(files, spec));
        let (dense, normalizes) = (dense.collect::<Result<_>>()?, sentence.normalize);
        Ok(Self { pooling, width, dense, normalizes })
    }

    /// The pooling that makes one vector of hidden states.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Whether vectors have length one.
    pub fn normalizes(&self) -> bool {
        self.normalizes
    }

    /// Elements of a vector.
    pub fn dimensions(&self) -> usize {
        self.dense.last().map_or(self.width, |dense| dense.weight.n())
    }

    /// The vector of the hidden states `[tokens, width]` of one text, padding left out.
    ///
    /// # Errors
    /// Memory ran out.
    pub fn vector(&self, states: &[f32]) -> Result<Vec<f32>> {
        let mut vector = pool(states, self.width, self.pooling);
        for dense in &self.dense {
            vector = dense.forward(vector)?;
        }
        if self.normalizes {
            normalize(&mut vector);
        }
        Ok(vector)
    }
}

impl Dense {
    fn load(files: &CheckpointFiles, spec: &DenseSpec) -> Result<Self> {
        let tensor = |name: &str, shape: Vec<usize>| EncoderTensor {
            slot: name.to_owned(),
            names: vec![format!("linear.{name}")],
            shape,
        };
        let mut planned = vec![tensor("weight", vec![spec.outputs, spec.inputs])];
        if spec.bias {
            planned.push(tensor("bias", vec![spec.outputs]));
        }
        let mut tensors = weights::read_file(files, &spec.file, &planned)?;
        let mut take = |slot: &str| tensors.remove(slot).expect("every planned tensor was read");
        let values: Vec<f32> = take("weight").flatten_all()?.to_vec1()?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut weight = Weight::builder(spec.outputs, spec.inputs, DType::F32)?;
        weight.write_rows(0, WeightRows { dtype: DType::F32, bytes: &bytes })?;
        let bias = spec.bias.then(|| take("bias"));
        Ok(Self { weight: weight.finish()?, bias, act: spec.act })
    }

    fn forward(&self, x: Vec<f32>) -> Result<Vec<f32>> {
        let x = Tensor::from_vec(x, (1, self.weight.k()), &Device::Cpu)?;
        let y = linear(&x, &self.weight, self.bias.as_ref())?;
        let y = match self.act {
            Some(act) => activate(&y, act)?,
            None => y,
        };
        Ok(y.flatten_all()?.to_vec1()?)
    }
}
