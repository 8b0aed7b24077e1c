//! Plans for a real model, what does not fit, and the other ways.

use candlepower_layout::device_head_dim;

use super::*;
use crate::{
    arch,
    config::HfConfig,
    spec::{ExpertsSpec, FfnSpec, GatingSpec, MlpSpec},
};

/// meta-llama/Llama-3.1-8B-Instruct, as far as memory depends on it.
const LLAMA_3_1_8B: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256}"#;
const GIB: u64 = 1 << 30;
/// Keys and values of one of its tokens in f32.
const TOKEN: u64 = 262_144;
/// Its weights in bf16.
const WEIGHTS: u64 = 8_030_261_248 * 2 + 65 * 4096 * 2;

fn llama() -> ModelSpec {
    let config = HfConfig::parse("config.json", LLAMA_3_1_8B.as_bytes()).unwrap();
    arch::find(&config).unwrap().describe(&config).unwrap()
}

fn request(available_bytes: u64) -> MemoryRequest {
    MemoryRequest {
        weights: Dtype::Bf16,
        kv: KvDtype::Plain(Dtype::F32),
        max_model_len: 4096,
        block_size: 16,
        max_num_seqs: 4,
        max_num_batched_tokens: Some(512),
        kv_cache_bytes: None,
        tensor_parallel_size: 1,
        images: ImageMemory::default(),
        memory: DeviceMemory {
            device: DeviceKind::Cpu,
            available_bytes: Some(available_bytes),
            counted: Counted::BeforeLoading,
        },
    }
}

fn plan(change: impl FnOnce(&mut MemoryRequest)) -> MemoryPlan {
    let mut request = request(24 * GIB);
    change(&mut request);
    MemoryPlan::new(&llama(), request)
}

fn error(plan: &MemoryPlan) -> String {
    plan.check(&llama()).unwrap_err().to_string()
}

#[test]
fn a_cache_is_a_quarter_of_what_is_free_but_no_more_than_is_useful() {
    let found = plan(|_| {});
    assert_eq!((found.weights_bytes, found.kv_bytes_per_token), (WEIGHTS, TOKEN));
    assert_eq!(found.num_blocks as u64, (24 * GIB - WEIGHTS) / 4 / (16 * TOKEN));
    assert_eq!(found.kv_cache_bytes, found.num_blocks as u64 * 16 * TOKEN);
    assert_eq!(found.sequence_bytes, 4096 * TOKEN);
    assert_eq!(found.needed_bytes, WEIGHTS + found.activation_bytes + 4096 * TOKEN);
    assert!(found.fits && found.num_sequences() == 2);
    assert!(found.check(&llama()).is_ok());
    let roomy = plan(|r| r.memory.available_bytes = Some(400 * GIB));
    assert_eq!((roomy.num_blocks, roomy.num_sequences()), (4 * 256, 4));
    let unknown = plan(|r| r.memory.available_bytes = None);
    assert_eq!((unknown.num_blocks, unknown.fits), (256, true));
}

#[test]
fn after_loading_the_weights_are_not_subtracted_again() {
    let loaded = plan(|r| {
        r.memory.available_bytes = Some(24 * GIB - WEIGHTS);
        r.memory.counted = Counted::AfterLoading;
    });
    assert_eq!(loaded.num_blocks, plan(|_| {}).num_blocks);
}

#[test]
fn an_asked_size_is_taken_as_it_is() {
    let asked = |bytes, counted| {
        plan(move |r| {
            r.kv_cache_bytes = Some(bytes);
            r.memory.counted = counted;
            r.memory.available_bytes = Some(0);
        })
    };
    let sequence = 4096 * TOKEN;
    let found = asked(3 * sequence + 1, Counted::AfterLoading);
    assert!(found.fits && found.num_sequences() == 3);
    let small = asked(sequence - 1, Counted::AfterLoading);
    assert_eq!(
        error(&small),
        "the KV cache cannot hold one sequence of max_model_len 4096: that needs 1073741824 bytes and it has \
         1073741823; give --kv-cache-memory at least 1073741824, or lower --max-model-len to 4080"
    );
    assert!(!asked(sequence, Counted::BeforeLoading).fits);
}

#[test]
fn the_longest_context_that_fits_fits_and_the_next_does_not() {
    let spec = llama();
    for available in [15, 16, 20, 24, 100, 1000] {
        let longest = plan(|r| r.memory.available_bytes = Some(available * GIB))
            .max_model_len_that_fits(&spec);
        let fits = |len| {
            plan(|r| {
                r.memory.available_bytes = Some(available * GIB);
                r.max_model_len = len;
            })
            .fits
        };
        assert!(longest == 0 || fits(longest), "{available}");
        assert!(longest == spec.max_positions || !fits(longest + 1), "{available}");
    }
    let nothing = plan(|r| r.memory.available_bytes = Some(WEIGHTS));
    assert_eq!(nothing.max_model_len_that_fits(&spec), 0);
    let everything = plan(|r| r.memory.available_bytes = Some(1000 * GIB));
    assert_eq!(everything.max_model_len_that_fits(&spec), 131_072);
}

#[test]
fn what_does_not_fit_is_said_with_what_would() {
    let long = plan(|r| r.max_model_len = 131_072);
    let text = error(&long);
    assert!(text.starts_with("out of memory: 47."), "{text}");
    assert!(text.contains("GiB are needed (weights 15.0 GiB, keys and values 32.0 GiB"), "{text}");
    let fits = long.max_model_len_that_fits(&llama());
    assert!(
        text.ends_with(&format!("24.0 GiB are free; lower --max-model-len to {fits}")),
        "{text}"
    );

    let wide = plan(|r| r.weights = Dtype::F32);
    assert!(error(&wide).ends_with("free; keep the weights in 16 bits with --dtype bfloat16"));
    let hopeless = plan(|r| r.memory.available_bytes = Some(GIB));
    assert!(error(&hopeless).ends_with("take a smaller or a quantized model, or more memory"));

    // A cache that fits the memory but not the quarter can be asked for.
    let quarter = plan(|r| r.max_model_len = 16_384);
    assert!(matches!(quarter.check(&llama()), Err(Error::KvCacheTooSmall { .. })));
    let asked = plan(|r| {
        r.max_model_len = 16_384;
        r.kv_cache_bytes = Some(16_384 * TOKEN);
    });
    assert!(asked.fits);
    let greedy = plan(|r| r.kv_cache_bytes = Some(20 * GIB));
    assert!(error(&greedy).contains("lower --kv-cache-memory to "), "{}", error(&greedy));
}

#[test]
fn smaller_steps_are_proposed_where_they_suffice() {
    let steps = |tokens| plan(move |r| r.max_num_batched_tokens = Some(tokens));
    let text = error(&steps(1 << 20));
    let (_, proposed) = text.rsplit_once("; lower --max-num-batched-tokens to ").expect(&text);
    let proposed: usize = proposed.parse().unwrap();
    assert!(steps(proposed).fits && !steps(proposed + 1).fits, "{text}");

    // Steps of a few tokens would fit, but they are no way out.
    let full = |tokens| {
        plan(move |r| {
            r.max_num_batched_tokens = Some(tokens);
            r.kv_cache_bytes = Some(4096 * TOKEN);
            r.memory.available_bytes = Some(steps(16).needed_bytes);
        })
    };
    assert!(full(16).fits && !full(64).fits);
    assert!(!error(&full(512)).contains("--max-num-batched-tokens"), "{}", error(&full(512)));
}

#[test]
fn gpus_are_filled_and_more_of_them_proposed() {
    let gpu = |gib: u64, ranks| {
        plan(move |r| {
            r.kv = Dtype::Bf16.into();
            r.tensor_parallel_size = ranks;
            r.memory.device = DeviceKind::Gpu { utilization: 0.9 };
            r.memory.available_bytes = Some(gib * GIB);
        })
    };
    let one = gpu(24, 1);
    // Rows as they are, and norms in 16 bits too.
    assert_eq!(one.weights_bytes, 8_030_261_248 * 2);
    let left = 24 * GIB * 9 / 10 - one.weights_bytes - one.activation_bytes;
    // The cache is as large as four sequences need, where there is room.
    assert!(one.fits && one.kv_cache_bytes == (4 * 4096 * TOKEN / 2).min(left), "{one:?}");
    let part = |utilization| {
        plan(move |r| {
            r.max_num_seqs = 256;
            r.kv = Dtype::Bf16.into();
            r.memory.device = DeviceKind::Gpu { utilization };
        })
    };
    let (half, most) = (part(0.85), part(0.95));
    let (grown, block) = (most.kv_cache_bytes - half.kv_cache_bytes, 16 * TOKEN / 2);
    assert!(grown.abs_diff(24 * GIB / 10) <= block, "{grown}");
    assert!(!part(0.5).fits);
    let small = gpu(12, 1);
    assert_eq!(small.ranks_that_fit(&llama()), Some(2));
    assert!(error(&small).contains("take 2 such GPUs with --tensor-parallel-size 2"));
    assert!(gpu(12, 2).fits);
}

#[test]
fn keys_and_values_in_fp8_take_a_byte_each() {
    let fp8 = plan(|r| r.kv = KvDtype::Fp8);
    assert_eq!(fp8.kv_bytes_per_token, TOKEN / 4);
    assert_eq!((fp8.weights_bytes, fp8.sequence_bytes), (WEIGHTS, 1024 * TOKEN));
    // The steps need as much as before.
    let gpu = |kv| {
        plan(move |r| {
            r.kv = kv;
            r.max_num_seqs = 256;
            r.memory.device = DeviceKind::Gpu { utilization: 0.9 };
        })
    };
    let (full, half) = (gpu(Dtype::Bf16.into()), gpu(KvDtype::Fp8));
    assert_eq!(full.activation_bytes, half.activation_bytes);
    assert_eq!(half.num_blocks / 2, full.num_blocks);
    let long = plan(|r| {
        r.max_model_len = 131_072;
        r.kv = Dtype::Bf16.into();
        r.memory.device = DeviceKind::Gpu { utilization: 0.9 };
        r.memory.available_bytes = Some(30 * GIB);
    });
    let line = error(&long);
    assert!(line.contains("with --kv-cache-dtype fp8"), "{line}");
}

#[test]
fn keys_and_values_are_kept_as_asked_or_as_the_weights() {
    let gpu = DeviceKind::Gpu { utilization: 0.9 };
    let [f32, f16, bf16] = [Dtype::F32, Dtype::F16, Dtype::Bf16].map(KvDtype::from);
    for (device, weights, kept) in [
        (DeviceKind::Cpu, Dtype::F32, f32),
        (DeviceKind::Cpu, Dtype::F16, f32),
        (DeviceKind::Cpu, Dtype::Bf16, bf16),
        (gpu, Dtype::F16, f16),
        (gpu, Dtype::Bf16, bf16),
    ] {
        assert_eq!(device.kv_dtype(None, weights).unwrap(), kept);
        assert_eq!(device.kv_dtype(Some(kept), weights).unwrap(), kept);
        assert_eq!(device.kv_dtype(Some(KvDtype::Fp8), weights).unwrap(), KvDtype::Fp8);
    }
    assert_eq!(DeviceKind::Cpu.kv_dtype(Some(bf16), Dtype::F32).unwrap(), bf16);
    for (device, asked, message) in [
        (gpu, f32, "a GPU with these weights: choose one of auto, bfloat16, fp8"),
        (
            DeviceKind::Cpu,
            f16,
            "the CPU with these weights: choose one of auto, float32, bfloat16, fp8",
        ),
    ] {
        let error = device.kv_dtype(Some(asked), Dtype::Bf16).unwrap_err().to_string();
        assert!(error.ends_with(message), "{error}");
    }
    let halved = plan(|r| r.kv = bf16);
    assert_eq!(halved.kv_bytes_per_token, TOKEN / 2);
}

#[test]
fn a_rank_has_its_part() {
    let spec = llama();
    let norms = 65 * 4096 * 4;
    let two = spec.rank_weight_bytes(Dtype::Bf16, 2);
    assert_eq!(2 * (two - norms), WEIGHTS - norms);
    assert_eq!(spec.rank_kv_bytes_per_token(Dtype::F32, 2), TOKEN / 2);
    // Beyond eight ranks each key and value head is on several of them.
    assert_eq!(spec.rank_kv_bytes_per_token(Dtype::F32, 16), TOKEN / 8);
    assert_eq!(spec.tensor_parallel_sizes(), [1, 2, 4, 8, 16, 32]);
    assert!(spec.check_tensor_parallel(32).is_ok());
    assert_eq!(
        spec.check_tensor_parallel(3).unwrap_err().to_string(),
        "tensor_parallel_size 3 does not divide the model's 32 attention heads; choose one of 1, 2, 4, 8, 16, 32"
    );
    assert!(spec.check_tensor_parallel(0).is_err());
}

/// Nobody can give so much, but the settings can say it.
#[test]
fn the_largest_settings_do_not_overflow() {
    let spec = llama();
    let changes: [fn(&mut MemoryRequest); 5] = [
        |r| r.max_num_batched_tokens = Some(usize::MAX),
        |r| r.max_num_seqs = usize::MAX,
        |r| r.block_size = usize::MAX,
        |r| r.kv_cache_bytes = Some(u64::MAX),
        |r| r.memory.available_bytes = None,
    ];
    for device in [DeviceKind::Cpu, DeviceKind::Gpu { utilization: 0.9 }] {
        let mut all = request(24 * GIB);
        all.memory.device = device;
        for change in changes {
            let mut one = request(24 * GIB);
            one.memory.device = device;
            change(&mut one);
            change(&mut all);
            for request in [one, all] {
                let plan = MemoryPlan::new(&spec, request);
                assert!(plan.needed_bytes >= plan.weights_bytes);
                if let Err(error) = plan.check(&spec) {
                    assert!(!error.to_string().is_empty());
                }
                plan.num_sequences();
            }
        }
        let steps = MemoryPlan::new(
            &spec,
            MemoryRequest { max_num_batched_tokens: Some(usize::MAX), ..all },
        );
        assert!(!steps.fits && steps.activation_bytes > 1 << 48);
    }
}

/// Phi-3-mini has heads of 96 elements, which attention on a GPU has not.
#[test]
fn a_gpu_keeps_heads_padded() {
    let mut spec = llama();
    spec.each_attention(|_, a| a.head_dim = 96);
    let padded = 2 * 32 * 8 * 128 * 2;
    assert_eq!(spec.device_kv_bytes_per_token(Dtype::Bf16, 1), padded);
    assert_eq!(spec.rank_kv_bytes_per_token(Dtype::Bf16, 1), padded * 96 / 128);
    assert_eq!(spec.device_weight_bytes(Dtype::Bf16, 1), 8_030_261_248 * 2);
    let widths = llama().device_widths(1);
    let expected = DeviceWidths { wide: 2 * 14336, inner: 14336, attended: 4096 };
    assert_eq!(widths, expected);
    assert_eq!(llama().device_widths(2).wide, 14336);
    assert_eq!([16, 64, 65, 128, 200].map(device_head_dim), [64, 64, 128, 128, 256]);
}

/// mistralai/Mixtral-8x7B: the buffers hold both experts of each token, and what they make of it.
#[test]
fn a_gpu_has_room_for_every_expert_of_a_token() {
    let mut spec = llama();
    let expert = MlpSpec { inner: 14336, ..*spec.layers[0].ffn.mlp().unwrap() };
    let experts = ExpertsSpec {
        separate_norms: false,
        count: 8,
        top_k: 2,
        gating: GatingSpec::softmax(true),
        router_bias: false,
        expert,
        shared: None,
        shared_gate: false,
    };
    spec.layers.iter_mut().for_each(|layer| layer.ffn = FfnSpec::Experts(experts));
    let dense = llama().device_widths(1);
    let widths = spec.device_widths(1);
    let expected = DeviceWidths { wide: 2 * dense.wide, inner: 2 * dense.inner, ..dense };
    assert_eq!(widths, expected);
    let narrow = |spec: &mut ModelSpec, inner, top_k| {
        let expert = MlpSpec { inner, ..expert };
        let experts = ExpertsSpec { count: 6000, top_k, expert, ..experts };
        spec.layers.iter_mut().for_each(|layer| layer.ffn = FfnSpec::Experts(experts));
        spec.device_widths(2)
    };
    let expected = DeviceWidths { wide: 8 * 4096, inner: 6000, attended: 2048 };
    assert_eq!(narrow(&mut spec, 1024, 8), expected);
}

/// meta-llama/Llama-3.1-70B-Instruct over H200s of 140 GiB. The figures are in docs/tensor-parallelism.md.
#[test]
fn seventy_billion_weights_over_large_gpus() {
    let mut spec = llama();
    (spec.hidden_size, spec.layers) = (8192, vec![spec.layers[0].clone(); 80]);
    spec.each_attention(|_, a| a.heads = 64);
    spec.each_mlp(|mlp| mlp.inner = 28_672);
    assert_eq!(spec.num_parameters(), 70_553_706_496);
    let row = |ranks| {
        let plan = MemoryPlan::new(
            &spec,
            MemoryRequest {
                kv: Dtype::Bf16.into(),
                max_model_len: 131_072,
                max_num_seqs: 256,
                tensor_parallel_size: ranks,
                memory: DeviceMemory {
                    device: DeviceKind::Gpu { utilization: 0.9 },
                    available_bytes: Some(140 * GIB),
                    counted: Counted::BeforeLoading,
                },
                ..request(0)
            },
        );
        let tokens = plan.num_blocks * plan.request.block_size;
        let weights = format!("{:.1}", plan.weights_bytes as f64 / GIB as f64);
        (weights, plan.kv_bytes_per_token, tokens, plan.fits)
    };
    assert_eq!(row(1), ("131.4".to_owned(), 327_680, 0, false));
    assert_eq!(row(2), ("65.7".to_owned(), 163_840, 387_040, true));
    assert_eq!(row(4), ("32.9".to_owned(), 81_920, 1_205_200, true));
    assert_eq!(row(8), ("16.4".to_owned(), 40_960, 2_841_504, true));
}

#[test]
fn steps_have_as_many_tokens_as_a_gpu_has_room_for_and_512_on_the_cpu() {
    let on_gpu = |gib: u64, counted, asked| {
        plan(|request| {
            request.kv = Dtype::Bf16.into();
            request.max_num_seqs = 256;
            request.max_num_batched_tokens = asked;
            let device = DeviceKind::Gpu { utilization: GPU_MEMORY_UTILIZATION };
            request.memory = DeviceMemory { device, available_bytes: Some(gib * GIB), counted };
        })
    };
    let before = |gib| on_gpu(gib, Counted::BeforeLoading, None);
    assert_eq!([80, 20, 18].map(|gib| before(gib).max_num_batched_tokens), [8192, 2048, 512]);
    for gib in [80, 20] {
        let found = before(gib);
        assert!(found.fits && found.activation_bytes <= (gib * GIB - WEIGHTS) / 4);
    }
    // Doctor, which counts before the weights are there, and the engine say the same.
    let after = MemoryPlan::new(&llama(), {
        let mut request = before(20).request;
        request.memory.available_bytes = Some(20 * GIB - WEIGHTS);
        request.memory.counted = Counted::AfterLoading;
        request
    });
    assert_eq!(after.max_num_batched_tokens, 2048);
    let asked = on_gpu(80, Counted::BeforeLoading, Some(64));
    assert_eq!(asked.max_num_batched_tokens, 64);
    assert!(asked.activation_bytes < before(80).activation_bytes);
    assert_eq!(plan(|r| r.max_num_batched_tokens = None).max_num_batched_tokens, BATCHED_TOKENS);
    assert_eq!(plan(|r| r.max_num_batched_tokens = Some(9)).max_num_batched_tokens, 9);
}

/// Qwen3.5 9B, as far as memory depends on it.
const QWEN3_5: &str = r#"{"architectures": ["Qwen3_5ForCausalLM"], "head_dim": 256, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 12288, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144, "num_attention_heads": 16,
    "num_hidden_layers": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 10000000, "vocab_size": 248320}"#;

/// States get half of what sequences may keep, and one sequence of the longest length comes before all of them but one.
#[test]
fn states_leave_room_for_keys_and_values() {
    let config = HfConfig::parse("config.json", QWEN3_5.as_bytes()).unwrap();
    let spec = arch::find(&config).unwrap().describe(&config).unwrap();
    let gpu = |free: u64, change: &dyn Fn(&mut MemoryRequest)| {
        let mut request = request(free);
        request.kv = KvDtype::Plain(Dtype::Bf16);
        request.max_num_seqs = 256;
        request.memory.device = DeviceKind::Gpu { utilization: 0.9 };
        change(&mut request);
        MemoryPlan::new(&spec, request)
    };
    let of_one = 24 * (32 * 128 * 128 * 4 + 3 * 8192 * 2);
    assert_eq!(spec.state_bytes(Dtype::Bf16, 1), of_one);
    let large = gpu(80 * GIB, &|_| {});
    assert_eq!(large.max_num_seqs, 256);
    assert!(large.num_states > 400 && large.state_bytes == large.num_states as u64 * of_one);
    assert!(large.state_bytes <= large.kv_cache_bytes + of_one);
    // Fewer run at once where they would not leave as much to keys and values.
    let small = gpu(30 * GIB, &|_| {});
    assert!(small.fits && small.max_num_seqs < 100 && small.num_states > small.max_num_seqs);
    let long = gpu(30 * GIB, &|request| request.max_model_len = 200_000);
    assert!(long.fits && long.num_states < small.num_states && long.num_sequences() == 1);
    let asked = gpu(30 * GIB, &|request| request.kv_cache_bytes = Some(6 * GIB));
    assert!(asked.fits && asked.num_states < small.num_states);
    // One state there must be, and one place is for the sequence that runs.
    let least = gpu(22 * GIB, &|request| request.max_model_len = 1024);
    assert!(least.max_num_seqs >= 1 && least.num_states >= least.max_num_seqs);
}
