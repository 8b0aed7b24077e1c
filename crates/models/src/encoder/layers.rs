//! The layers of an encoder: our own for BERT and similar models, those of candle-transformers for ModernBERT and NomicBERT.
//!
//! candle-transformers' BERT pads, and takes an erf per element for GELU, one by one. Its DistilBERT computes GELU by an
//! approximation, and its XLM-RoBERTa takes a token that happens to be the padding token for padding; here both are BERT with
//! other names and other positions. Its ModernBERT goes on without a norm that is missing: here no tensor may be missing.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{modernbert, nomic_bert};
use candlepower_checkpoint::{EncoderKind, EncoderSpec};

use super::{EncoderInput, bert::Bert};
use crate::error::Result;

/// Embedding and layers.
pub(crate) enum Layers {
    Bert(Bert),
    ModernBert(modernbert::ModernBert),
    NomicBert(nomic_bert::NomicBertModel),
}

/// A batch of texts, padded at their ends to `longest` tokens: `[texts, longest]` u32 each.
struct Padded {
    longest: usize,
    token_ids: Tensor,
    type_ids: Tensor,
    /// 1 for a token, 0 for padding.
    mask: Tensor,
}

impl Layers {
    /// Takes the tensors of the layers, by their slots.
    pub(crate) fn new(spec: &EncoderSpec, mut tensors: HashMap<String, Tensor>) -> Result<Self> {
        match spec.kind {
            EncoderKind::Bert { .. } => Ok(Self::Bert(Bert::new(spec, &mut tensors)?)),
            EncoderKind::ModernBert { global_every, window, global_theta, local_theta } => {
                let config = modernbert::Config {
                    vocab_size: spec.vocab_size,
                    hidden_size: spec.hidden_size,
                    num_hidden_layers: spec.num_layers,
                    num_attention_heads: spec.heads,
                    intermediate_size: spec.intermediate_size,
                    max_position_embeddings: spec.max_positions,
                    layer_norm_eps: spec.norm_eps,
                    pad_token_id: 0, // is not read
                    global_attn_every_n_layers: global_every,
                    global_rope_theta: global_theta,
                    local_attention: window,
                    local_rope_theta: local_theta,
                    classifier_config: None,
                };
                Ok(Self::ModernBert(modernbert::ModernBert::load(builder(tensors), &config)?))
            }
            EncoderKind::NomicBert { theta, interleaved, qkv_bias, fc1_bias, fc2_bias } => {
                let config = nomic_bert::Config {
                    vocab_size: spec.vocab_size,
                    n_embd: spec.hidden_size,
                    n_head: spec.heads,
                    n_layer: spec.num_layers,
                    n_inner: spec.intermediate_size,
                    n_positions: spec.max_positions,
                    type_vocab_size: spec.token_types,
                    layer_norm_epsilon: spec.norm_eps,
                    rotary_emb_fraction: 1.0,
                    rotary_emb_base: theta,
                    rotary_emb_interleaved: interleaved,
                    qkv_proj_bias: qkv_bias,
                    mlp_fc1_bias: fc1_bias,
                    mlp_fc2_bias: fc2_bias,
                    activation_function: "swiglu".to_owned(),
                    prenorm: false,
                    model_type: None,
                };
                let model = nomic_bert::NomicBertModel::load(builder(tensors), &config)?;
                Ok(Self::NomicBert(model))
            }
        }
    }

    /// The last hidden states of each text, `[tokens, hidden]`.
    pub(crate) fn forward(&self, inputs: &[EncoderInput]) -> Result<Vec<Vec<f32>>> {
        let (states, padded) = match self {
            Self::Bert(model) => (model.forward(inputs)?, None),
            Self::ModernBert(model) => {
                let Padded { longest, token_ids, mask, .. } = Padded::new(inputs)?;
                (model.forward(&token_ids, &mask)?, Some(longest))
            }
            Self::NomicBert(model) => {
                let Padded { longest, token_ids, type_ids, mask } = Padded::new(inputs)?;
                (model.forward(&token_ids, Some(&type_ids), Some(&mask))?, Some(longest))
            }
        };
        let width = states.dim(candle_core::D::Minus1)?;
        let states: Vec<f32> = states.flatten_all()?.to_vec1()?;
        let mut rest = &states[..];
        let of_text = |input: &EncoderInput| {
            let len = input.token_ids.len();
            // Only padded models have rows for the missing tokens of shorter texts.
            let (own, others) = rest.split_at(padded.unwrap_or(len) * width);
            rest = others;
            own[..len * width].to_vec()
        };
        Ok(inputs.iter().map(of_text).collect())
    }
}

impl Padded {
    fn new(inputs: &[EncoderInput]) -> Result<Self> {
        let longest = inputs.iter().map(|input| input.token_ids.len()).max().unwrap_or(0);
        let shape = (inputs.len(), longest);
        let zeros = || vec![0u32; inputs.len() * longest];
        let (mut token_ids, mut type_ids, mut mask) = (zeros(), zeros(), zeros());
        for (i, input) in inputs.iter().enumerate() {
            let (start, len) = (i * longest, input.token_ids.len());
            // Padding has the token 0, which is in any vocabulary, and the mask hides it.
            token_ids[start..start + len].copy_from_slice(&input.token_ids);
            type_ids[start..start + input.type_ids.len()].copy_from_slice(&input.type_ids);
            mask[start..start + len].fill(1);
        }
        Ok(Self {
            longest,
            token_ids: Tensor::from_vec(token_ids, shape, &Device::Cpu)?,
            type_ids: Tensor::from_vec(type_ids, shape, &Device::Cpu)?,
            mask: Tensor::from_vec(mask, shape, &Device::Cpu)?,
        })
    }
}

fn builder(tensors: HashMap<String, Tensor>) -> VarBuilder<'static> {
    VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu)
}
