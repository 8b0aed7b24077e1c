//! Changes that architectures make to the description that they start from.

use super::*;

impl ModelSpec {
    /// The common form of GPTs and the like: Llama's shape with LayerNorms, biases everywhere but at the head, and a feed-forward
    /// without a gate. The key `eps_by` has the LayerNorms' epsilon.
    pub(crate) fn gpt(c: &HfConfig, eps_by: &str) -> Result<Self> {
        let eps = c.float_opt(eps_by)?.unwrap_or(1e-5);
        let hidden_size = c.bounded("hidden_size", MAX_WIDTH)?;
        let heads = c.bounded("num_attention_heads", MAX_HEADS)?;
        if !c.contains("head_dim") && !hidden_size.is_multiple_of(heads) {
            let needed = "a divisor of the hidden states' width";
            return Err(c.ill_typed("num_attention_heads", &heads.into(), needed));
        }
        let c = c.without(&["rms_norm_eps"]).with_default("rms_norm_eps", eps);
        let mut m = Self::llama(&c.with_default("intermediate_size", 4 * hidden_size))?;
        m.set_norm(NormSpec { kind: NormKind::Layer { bias: true }, eps });
        m.set_biases(true);
        m.each_mlp(|mlp| mlp.gated = false);
        Ok(m)
    }

    /// Gives biases to the projections of all attentions and feed-forwards, or takes them away.
    pub(crate) fn set_biases(&mut self, bias: bool) {
        self.each_attention(|_, a| (a.qkv_bias, a.out_bias) = (bias, bias));
        self.each_mlp(|mlp| mlp.bias = bias);
    }

    /// Has the embeddings of positions added to those of tokens, in place of ropes.
    pub(crate) fn learn_positions(&mut self, c: &HfConfig) -> Result<()> {
        self.embed.positions = Some(c.bounded("max_position_embeddings", MAX_TOKENS)?);
        self.each_attention(|_, a| a.rope = None);
        Ok(())
    }

    /// A layer's attention, to be changed.
    pub(crate) fn attention_mut(&mut self, layer: usize) -> Option<&mut AttentionSpec> {
        match &mut self.layers[layer].mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::LinearAttention(_) | Mixer::ShortConv(_) => None,
        }
    }

    /// Edits every attention; the first argument is the layer's index.
    pub fn each_attention(&mut self, mut edit: impl FnMut(usize, &mut AttentionSpec)) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            if let Mixer::Attention(attention) = &mut layer.mixer {
                edit(i, attention);
            }
        }
    }

    /// Edits every layer's feed-forward, as long as there are no experts.
    pub fn each_mlp(&mut self, mut edit: impl FnMut(&mut MlpSpec)) {
        for layer in &mut self.layers {
            if let FfnSpec::Dense(mlp) = &mut layer.ffn {
                edit(mlp);
            }
        }
    }

    /// Makes RoPE rotate pairs of neighbours.
    pub fn interleave_ropes(&mut self) {
        self.each_attention(|_, a| a.rope.iter_mut().for_each(|rope| rope.interleaved = true));
    }

    /// Leaves ropes to layers with a window.
    pub fn drop_ropes_of_full_layers(&mut self) {
        self.each_attention(|_, a| a.rope = a.rope.take().filter(|_| a.window.is_some()));
    }

    /// Gives layers with a window the ropes of `c`.
    pub(crate) fn set_ropes_of_windowed_layers(&mut self, c: &HfConfig) -> Result<()> {
        let windowed = self.attentions().find(|attention| attention.window.is_some());
        let rope = windowed.map(|attention| RopeSpec::read(c, attention.head_dim)).transpose()?;
        self.each_attention(|_, a| {
            if a.window.is_some() {
                a.rope.clone_from(&rope);
            }
        });
        Ok(())
    }

    /// Norms q and k of every layer.
    pub fn set_qk_norm(&mut self, norm: NormSpec, span: QkNormSpan) {
        self.each_attention(|_, a| a.qk_norm = Some(QkNormSpec { norm, span }));
    }

    /// Gives experts to the layers for which `has` says so. Their inner width is `width_by` of the configuration.
    pub(crate) fn set_experts(
        &mut self,
        c: &HfConfig,
        width_by: &str,
        gating: GatingSpec,
        has: impl Fn(usize) -> bool,
    ) -> Result<()> {
        // The bound is for all layers together: each expert has rows in the list of tensors.
        let count = c.bounded(c.counts_experts_by(), MAX_EXPERTS / self.layers.len())?;
        let top_k = c.count("num_experts_per_tok")?;
        if top_k > count {
            let found = top_k.into();
            return Err(c.ill_typed(
                "num_experts_per_tok",
                &found,
                "at most the number of experts",
            ));
        }
        let inner = c.bounded(width_by, MAX_WIDTH)?;
        for (i, layer) in self.layers.iter_mut().enumerate() {
            // A layer without a feed-forward stays so.
            let Some(&mlp) = layer.ffn.mlp() else { continue };
            if has(i) {
                layer.ffn = FfnSpec::Experts(ExpertsSpec {
                    count,
                    top_k,
                    gating,
                    router_bias: false,
                    // Experts have no biases, whatever the dense layers have; gpt-oss sets its own.
                    expert: MlpSpec { inner, bias: false, ..mlp },
                    shared: None,
                    shared_gate: false,
                    separate_norms: false,
                });
            }
        }
        Ok(())
    }

    /// Gives MoE layers shared experts, as many as `key` of the configuration says, or else `default`. Together they are one expert of
    /// their total width.
    pub(crate) fn set_shared_experts(
        &mut self,
        c: &HfConfig,
        key: &str,
        default: usize,
    ) -> Result<()> {
        let count = c.index_or(key, default)?;
        self.set_shared_width(c, key, |expert| count.saturating_mul(expert))
    }

    /// Gives MoE layers a shared expert with the width that `width` computes from the width of the others; `key` is the key that has
    /// it in the configuration.
    pub(crate) fn set_shared_width(
        &mut self,
        c: &HfConfig,
        key: &str,
        width: impl Fn(usize) -> usize,
    ) -> Result<()> {
        for layer in &mut self.layers {
            let FfnSpec::Experts(experts) = &mut layer.ffn else { continue };
            // Shared experts of all models lie in one matrix, so their widths add up.
            let inner = width(experts.expert.inner);
            if inner > MAX_WIDTH {
                let found = c.raw(key).cloned().unwrap_or_default();
                let hint = format!("; at most {MAX_WIDTH} columns together are");
                return Err(c.unsupported(key, &found, &hint));
            }
            experts.shared = (inner > 0).then_some(MlpSpec { inner, ..experts.expert });
        }
        Ok(())
    }

    /// Has each block add `factor * f(norm(x))` to `x`. In units of the factor `r`, with `y = x / r`, it adds `f(norm(x))` to `y`, and
    /// the norm of `x` is that of `y` with an epsilon of `eps / r^2`: so a plain residual does.
    pub fn scale_branches(&mut self, factor: f64) {
        self.embed.scale /= factor;
        let mut norm = self.final_norm;
        norm.eps /= factor * factor;
        self.set_norm(norm);
    }

    /// Gives a window to the layers that `layer_types` calls `sliding_attention`, or, where the
    /// configuration has no such list, to those for which `by_default` says so.
    pub fn set_windows(
        &mut self,
        c: &HfConfig,
        window: usize,
        by_default: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let kinds = [&["sliding_attention"][..], &["full_attention"]];
        let sliding = self.layer_kinds(c, "layer_types", kinds, by_default)?;
        self.each_attention(|i, a| a.window = sliding[i].then_some(window));
        Ok(())
    }

    /// Gives the layers for which `of` says so this mixer in place of their attention, of which one is left; `key` is what the configuration
    /// says of it.
    pub(crate) fn set_mixers(
        &mut self,
        c: &HfConfig,
        key: &str,
        of: &[bool],
        mixer: &Mixer,
    ) -> Result<()> {
        // The KV cache's blocks order a sequence's tokens, so one layer at least must have keys and values.
        if of.iter().all(|of| *of) {
            let found = c.raw(key).cloned().unwrap_or_default();
            return Err(c.ill_typed(key, &found, "full_attention in one layer at least"));
        }
        let layers = self.layers.iter_mut().zip(of);
        layers.filter(|(_, of)| **of).for_each(|(layer, _)| layer.mixer = mixer.clone());
        Ok(())
    }

    /// Whether the list `key` names each layer by one of the first names and not by one of the second. If the configuration has no
    /// such list, `by_default` decides.
    pub(crate) fn layer_kinds(
        &self,
        c: &HfConfig,
        key: &str,
        [first, second]: [&[&str]; 2],
        by_default: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>> {
        let Some(types) = c.texts_opt(key)? else {
            return Ok((0..self.layers.len()).map(by_default).collect());
        };
        let kind = |i: usize| match types.get(i) {
            Some(kind) if first.contains(kind) => Ok(true),
            Some(kind) if second.contains(kind) => Ok(false),
            Some(&other) => {
                let hint = format!("; {} and {} are", first[0], second[0]);
                Err(c.unsupported(key, &other.into(), &hint))
            }
            None => {
                let found = c.raw(key).cloned().unwrap_or_default();
                Err(c.ill_typed(key, &found, "an entry for each layer"))
            }
        };
        (0..self.layers.len()).map(kind).collect()
    }

    /// Sets every norm, the final one included.
    pub fn set_norm(&mut self, norm: NormSpec) {
        self.final_norm = norm;
        self.layers.iter_mut().for_each(|l| l.norm = norm);
    }
}
