//! BERT and similar models, over our own kernels.
//!
//! The tokens of all texts of a batch lie one after the other, without padding. Every kernel gives a row the same bits whatever the
//! other rows are, so a text's states are the same in any batch.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{EncoderKind, EncoderSpec};
use candlepower_kernels::{
    Activation, DistanceBias, FullAttention, Weight, WeightRows, activation, add_layer_norm,
    full_attention, layer_norm, linear,
};

use super::EncoderInput;
use crate::error::Result;

/// Embedding and layers.
pub(crate) struct Bert {
    /// `[vocab, hidden]`.
    words: Vec<f32>,
    /// `[positions, hidden]`.
    positions: Vec<f32>,
    /// `[types, hidden]`; empty where the model has none.
    types: Vec<f32>,
    norm: Norm,
    layers: Vec<Layer>,
    hidden: usize,
    heads: usize,
    /// The biases by distance, where the model has such.
    bias: Option<DistanceBias>,
    act: Activation,
}

struct Layer {
    qkv: Affine,
    attention_out: Affine,
    attention_norm: Norm,
    up: Affine,
    down: Affine,
    output_norm: Norm,
}

struct Affine {
    weight: Weight,
    bias: Tensor,
}

struct Norm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl Bert {
    /// Takes the tensors of the layers, by their slots.
    pub(crate) fn new(spec: &EncoderSpec, tensors: &mut HashMap<String, Tensor>) -> Result<Self> {
        let EncoderKind::Bert { first_position, distance_classes } = spec.kind else {
            unreachable!("only BERT is asked for its layers here")
        };
        let mut take = Take { tensors, eps: spec.norm_eps as f32 };
        let positions = take.table("embeddings.position_embeddings")?;
        let bias = match distance_classes {
            0 => None,
            classes => {
                let table = take.table("encoder.relative_attention_bias")?;
                let of =
                    |head, distance| table[distance_class(distance, classes) * spec.heads + head];
                Some(DistanceBias::new(spec.heads, MAX_DISTANCE, of))
            }
        };
        let layers = (0..spec.num_layers).map(|i| {
            let name = |name: &str| format!("encoder.layer.{i}.{name}");
            let part = |which: &str| name(&format!("attention.self.{which}"));
            Ok(Layer {
                qkv: take.affine(&[part("query"), part("key"), part("value")])?,
                attention_out: take.affine(&[name("attention.output.dense")])?,
                attention_norm: take.norm(&name("attention.output.LayerNorm")),
                up: take.affine(&[name("intermediate.dense")])?,
                down: take.affine(&[name("output.dense")])?,
                output_norm: take.norm(&name("output.LayerNorm")),
            })
        });
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            words: take.table("embeddings.word_embeddings")?,
            positions: positions[first_position * spec.hidden_size..].to_vec(),
            types: match spec.token_types {
                0 => Vec::new(),
                _ => take.table("embeddings.token_type_embeddings")?,
            },
            norm: take.norm("embeddings.LayerNorm"),
            hidden: spec.hidden_size,
            heads: spec.heads,
            bias,
            act: spec.act,
        })
    }

    /// The last hidden states of all texts, one after the other: `[tokens, hidden]`.
    pub(crate) fn forward(&self, inputs: &[EncoderInput]) -> Result<Tensor> {
        let mut starts = vec![0u32];
        for input in inputs {
            starts.push(starts[starts.len() - 1] + input.token_ids.len() as u32);
        }
        let attention = FullAttention {
            heads: self.heads,
            kv_heads: self.heads,
            scale: ((self.hidden / self.heads) as f32).powf(-0.5),
            window: None,
            bias: self.bias.as_ref(),
        };
        let mut x = self.norm.forward(&self.embed(inputs)?)?;
        for layer in &self.layers {
            let attended = full_attention(&layer.qkv.forward(&x)?, &attention, &starts)?;
            x = layer.attention_norm.add(&x, &layer.attention_out.forward(&attended)?)?;
            let up = activation(&layer.up.forward(&x)?, self.act)?;
            x = layer.output_norm.add(&x, &layer.down.forward(&up)?)?;
        }
        Ok(x)
    }

    /// Words, positions and token types added up: `[tokens, hidden]`.
    fn embed(&self, inputs: &[EncoderInput]) -> Result<Tensor> {
        let row =
            |table: &[f32], index: usize| table[index * self.hidden..][..self.hidden].to_vec();
        let mut sums = Vec::new();
        for input in inputs {
            for (position, id) in input.token_ids.iter().enumerate() {
                let mut sum = row(&self.words, *id as usize);
                add(&mut sum, &row(&self.positions, position));
                if !self.types.is_empty() {
                    let kind = input.type_ids.get(position).copied().unwrap_or(0);
                    add(&mut sum, &row(&self.types, kind as usize));
                }
                sums.extend(sum);
            }
        }
        let tokens = sums.len() / self.hidden;
        Ok(Tensor::from_vec(sums, (tokens, self.hidden), &Device::Cpu)?)
    }
}

/// From this distance on, all have the same class.
const MAX_DISTANCE: usize = 128;

/// The class of a distance from a query to a key: half of them are for keys behind the query; of each half, half are for one
/// distance each, and the others grow by a factor.
///
/// Source: transformers `models/mpnet`, `relative_position_bucket`; Raffel et al., "Exploring the Limits of Transfer Learning
/// with a Unified Text-to-Text Transformer", 2019.
fn distance_class(distance: isize, classes: usize) -> usize {
    let half = classes / 2;
    let exact = half / 2;
    let (first, length) = (if distance > 0 { half } else { 0 }, distance.unsigned_abs());
    if length < exact {
        return first + length;
    }
    // In single precision, as the models were trained.
    let grown = (length as f32 / exact as f32).ln()
        / (MAX_DISTANCE as f64 / exact as f64).ln() as f32
        * (half - exact) as f32;
    first + (exact + grown as usize).min(half - 1)
}

fn add(sum: &mut [f32], row: &[f32]) {
    sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
}

impl Affine {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(linear(x, &self.weight, Some(&self.bias))?)
    }
}

impl Norm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(layer_norm(x, &self.weight, Some(&self.bias), self.eps)?)
    }

    /// The norm of `residual + x`.
    fn add(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor> {
        Ok(add_layer_norm(residual, x, &self.weight, Some(&self.bias), self.eps)?)
    }
}

/// Takes tensors that are known to be there.
struct Take<'a> {
    tensors: &'a mut HashMap<String, Tensor>,
    eps: f32,
}

impl Take<'_> {
    fn tensor(&mut self, name: &str) -> Tensor {
        self.tensors.remove(name).expect("every planned tensor was found")
    }

    fn table(&mut self, name: &str) -> Result<Vec<f32>> {
        Ok(self.tensor(&format!("{name}.weight")).flatten_all()?.to_vec1()?)
    }

    fn norm(&mut self, name: &str) -> Norm {
        Norm {
            weight: self.tensor(&format!("{name}.weight")),
            bias: self.tensor(&format!("{name}.bias")),
            eps: self.eps,
        }
    }

    /// Matrices with as many columns, one below the other.
    fn affine(&mut self, names: &[String]) -> Result<Affine> {
        let tensors: Vec<Tensor> =
            names.iter().map(|name| self.tensor(&format!("{name}.weight"))).collect();
        let biases: Vec<Tensor> =
            names.iter().map(|name| self.tensor(&format!("{name}.bias"))).collect();
        let rows = tensors.iter().map(|tensor| tensor.dims()[0]).sum();
        let mut weight = Weight::builder(rows, tensors[0].dims()[1], DType::F32)?;
        let mut first_row = 0;
        for tensor in tensors {
            let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            weight.write_rows(first_row, WeightRows { dtype: DType::F32, bytes: &bytes })?;
            first_row += tensor.dims()[0];
        }
        Ok(Affine { weight: weight.finish()?, bias: Tensor::cat(&biases, 0)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected classes are those of transformers' function.
    #[test]
    fn classes_of_distances_are_exact_at_first_and_grow_then() {
        let class = |distance| distance_class(distance, 32);
        assert_eq!([0, 1, 7, 8, 128, 100_000].map(class), [0, 17, 23, 24, 31, 31]);
        let mut firsts = vec![0];
        firsts.extend((1..200).filter(|length| class(-*length) != class(1 - *length)));
        assert_eq!(firsts, [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        assert!((1..200).all(|length| class(length) == class(-length) + 16));
    }
}
