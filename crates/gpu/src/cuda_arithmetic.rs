//! Tests of the CUDA kernels' index arithmetic and sampling on the CPU. The headers that the kernels include are
//! compiled with the host's C++ compiler and compared with the Rust references.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::operands::quant_index;
use candlepower_kernels::operands::OfExperts;
use candlepower_kernels::sampling::{Penalties, SamplingRow, sample_row_reference};
use candlepower_kernels::{
    CacheOrder, KvCacheConfig, RopeStyle, layer_norm_reference, reshape_and_cache_reference,
    rms_norm_reference, rope_reference,
};
use candlepower_kernels::{Gating, GatingFunction};
use candlepower_layout::device_sampling_bytes;

/// host.cpp as a loaded library.
struct Host {
    library: *mut c_void,
    path: PathBuf,
}

impl Host {
    /// Compiles the library under the given name and loads it.
    fn load(name: &str) -> Self {
        // Several test processes may run in the same build folder.
        let path = Path::new(env!("OUT_DIR")).join(format!("lib{name}_{}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda/kernels/host.cpp");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        let status = Command::new(&compiler)
            // Without contraction the compiler forms no fused multiply-adds, as Rust forms none.
            .args(["-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-o"])
            .args([path.as_os_str(), source.as_ref()])
            .status()
            .unwrap_or_else(|error| panic!("cannot start {compiler}: {error}; set CXX"));
        assert!(status.success(), "{compiler} could not compile {source}");
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the library has no constructors that could do anything.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "cannot load {}", path.display());
        Self { library, path }
    }

    /// The function `name`.
    ///
    /// # Safety
    /// `F` must be the function pointer type of `name` in host.cpp, and must not be used after `self` is dropped.
    unsafe fn function<F: Copy>(&self, name: &str) -> F {
        let symbol = CString::new(name).unwrap();
        // SAFETY: the library is loaded as long as `self` lives.
        let address = unsafe { libc::dlsym(self.library, symbol.as_ptr()) };
        assert!(!address.is_null() && size_of::<F>() == size_of::<*mut c_void>(), "{name}");
        // SAFETY: the caller passes the function's own type, a pointer.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: the library was loaded once, and nobody uses its functions any more.
        unsafe { libc::dlclose(self.library) };
        let _ = std::fs::remove_file(&self.path);
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

#[test]
fn rope_pairs_are_the_references() {
    let host = Host::load("rope");
    // SAFETY: the type is that of host.cpp.
    let pair: extern "C" fn(i32, i32, i32, *mut i32) = unsafe { host.function("host_rope_pair") };
    for (code, style) in [(0, RopeStyle::Neox), (1, RopeStyle::Interleaved)] {
        for (head_dim, half) in [(64, 32), (128, 16), (10, 5)] {
            let head: Vec<f32> = (0..head_dim).map(|i| i as f32 + 1.0).collect();
            let (cos, sin): (Vec<f32>, Vec<f32>) =
                (0..half).map(|i| ((i as f32).cos(), (i as f32).sin())).unzip();
            let mut rotated = head.clone();
            for i in 0..half {
                let mut at = [0; 2];
                pair(i as i32, half as i32, code, at.as_mut_ptr());
                let [first, second] = at.map(|at| at as usize);
                rotated[first] = head[first] * cos[i] - head[second] * sin[i];
                rotated[second] = head[second] * cos[i] + head[first] * sin[i];
            }
            assert_eq!(rotated, rope_reference(&head, &cos, &sin, style));
        }
    }
}

#[test]
fn heads_and_slots_are_where_the_references_have_them() {
    let host = Host::load("cache");
    // SAFETY: the types are those of host.cpp.
    let (offset, fused) = unsafe {
        let offset: extern "C" fn(u32, i32, i32, i32, i32) -> u64 =
            host.function("host_cache_offset");
        let fused: extern "C" fn(i32, i32, i32, *mut i32) = host.function("host_fused_head");
        (offset, fused)
    };
    let (num_kv_heads, block_size, head_dim) = (3, 16, 8);
    let config = KvCacheConfig {
        num_layers: 1,
        num_blocks: 5,
        block_size,
        num_kv_heads,
        head_dim,
        latent: None,
    };
    for slot in 0..config.num_blocks * block_size {
        for head in 0..num_kv_heads {
            let (_, value) =
                reshape_and_cache_reference(&config, CacheOrder::Single, slot, (head, 0));
            assert_eq!(offset(slot as u32, head as i32, 3, 16, 8), value as u64);
        }
    }
    // A cache of more than 2^32 elements.
    assert_eq!(offset(u32::MAX - 1, 7, 8, 16, 128), ((268_435_455 * 8 + 7) * 16 + 14) * 128);
    let heads: Vec<[i32; 2]> = (0..9)
        .map(|head| {
            let mut at = [0; 2];
            fused(head, 5, 2, at.as_mut_ptr());
            at
        })
        .collect();
    let expected = [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [1, 0], [1, 1], [2, 0], [2, 1]];
    assert_eq!(heads, expected);
}

/// The norm of each head over the elements that the header selects, compared with the reference implementations over
/// whole rows.
#[test]
fn norms_of_q_and_k_are_over_the_elements_of_the_references() {
    let host = Host::load("norms");
    // SAFETY: the type is that of host.cpp.
    let range: extern "C" fn(i32, i32, i32, i32, i32, *mut i32) =
        unsafe { host.function("host_norm_range") };
    let (heads, head_dim, len, eps) = (3, 8, 6, 1e-5);
    let row: Vec<f32> = (0..heads * head_dim).map(|i| ((i * 7) % 11) as f32 - 4.0).collect();
    let weight: Vec<f32> = (0..heads * head_dim).map(|i| 0.5 + i as f32 / 8.0).collect();
    let of_heads = || row.chunks(head_dim).zip(weight.chunks(head_dim));
    let each_head = of_heads().flat_map(|(x, weight)| {
        let normed = layer_norm_reference(&x[..len], &weight[..len], None, eps);
        [normed, vec![0.0; head_dim - len]].concat()
    });
    let wanted: [Vec<f32>; 3] = [
        of_heads().flat_map(|(x, _)| rms_norm_reference(x, &weight[..head_dim], eps)).collect(),
        rms_norm_reference(&row, &weight, eps),
        each_head.collect(),
    ];
    for (span, want) in wanted.iter().enumerate() {
        let (is_layer_norm, head_len) = if span == 2 { (true, len) } else { (false, head_dim) };
        for head in 0..heads {
            let mut at = [0; 2];
            let dims = [heads, head_dim, head_len].map(|n| n as i32);
            range(span as i32, head as i32, dims[0], dims[1], dims[2], at.as_mut_ptr());
            let [count, weights] = at.map(|at| at as usize);
            let first = if count > head_dim { 0 } else { head * head_dim };
            let of = &row[first..first + count];
            let mean = of.iter().sum::<f32>() / count as f32;
            let mean = if is_layer_norm { mean } else { 0.0 };
            let squares: f32 = of.iter().map(|x| (x - mean).powi(2)).sum();
            let scale = 1.0 / (squares / count as f32 + eps).sqrt();
            for i in 0..head_dim {
                let value = (row[head * head_dim + i] - mean) * scale * weight[weights + i];
                let value = if i < head_len { value } else { 0.0 };
                let want = want[head * head_dim + i];
                assert!((value - want).abs() < 1e-5, "span {span}, head {head}: {value}, {want}");
            }
        }
    }
}

#[test]
fn parts_cover_a_length_once_and_in_order() {
    let host = Host::load("parts");
    // SAFETY: the types are those of host.cpp.
    let (split, warps) = unsafe {
        let split: extern "C" fn(i32, i32, i32, i32, *mut i32) = host.function("host_split_range");
        let warps: extern "C" fn(i32, i32, i32) -> i32 = host.function("host_warps_per_output");
        (split, warps)
    };
    for length in [0, 1, 31, 32, 33, 896, 4864, 32_001, 151_936] {
        for (step, parts) in [(1, 3), (32, 32), (256, 1), (256, 8)] {
            let mut next = 0;
            for part in 0..parts {
                let mut range = [0; 2];
                split(length, step, part, parts, range.as_mut_ptr());
                assert_eq!(range[0], next);
                assert!(range[1] >= range[0] && (range[1] % step == 0 || range[1] == length));
                next = range[1];
            }
            assert_eq!(next, length);
        }
    }
    // 4,224 is 32 warps on each of 132 multiprocessors, which an H100 has.
    assert_eq!([896, 2048, 4096, 151_936].map(|n| warps(n, 4224, 8)), [8, 4, 2, 1]);
}

#[test]
fn blocks_have_about_the_same_number_of_tiles() {
    let host = Host::load("shares");
    // SAFETY: the type is that of host.cpp.
    let shares: extern "C" fn(i32, i32) -> i32 = unsafe { host.function("host_equal_shares") };
    // Tiles of the matrices of Llama-3.1-8B, and the places of an H200.
    assert_eq!([768, 1024, 3584, 16_032].map(|tiles| shares(tiles, 528)), [384, 512, 512, 518]);
    for (tiles, most) in [(1, 1), (7, 3), (528, 528), (529, 528), (100_000, 132)] {
        let blocks = shares(tiles, most);
        assert!(blocks >= 1 && blocks <= most);
        // The busiest block has no more tiles than with all places.
        assert_eq!((tiles + blocks - 1) / blocks, (tiles + most - 1) / most, "{tiles} of {most}");
    }
}

#[test]
fn parts_of_a_row_cover_the_vocabulary_and_fit_the_scratch_memory() {
    let host = Host::load("row_parts");
    // SAFETY: the types are those of host.cpp.
    let (count, ids) = unsafe {
        let count: extern "C" fn(i32) -> i32 = host.function("host_num_parts");
        let ids: extern "C" fn(i32, i32, *mut i32) = host.function("host_ids_of_part");
        (count, ids)
    };
    for vocab in [1, 8191, 8192, 8193, 32_001, 128_256, 151_936, 524_288, 524_289, 2_000_000] {
        let parts = count(vocab);
        let mut next = 0;
        for part in 0..parts {
            let mut range = [0; 2];
            ids(vocab, part, range.as_mut_ptr());
            assert!(range[0] == next && range[1] > next, "{range:?} of {vocab}");
            next = range[1];
        }
        assert_eq!(next, vocab);
        // `kPartWords` of each part, and two selections.
        let words = 3124 * parts as usize + 6;
        assert_eq!(device_sampling_bytes(vocab as usize), 8 * words, "{vocab}");
    }
}

#[test]
fn quantized_weights_lie_where_the_packed_matrix_has_them() {
    let host = Host::load("quants");
    type QuantIndex = extern "C" fn(i32, i32, i32, i32, *mut i32) -> u64;
    // SAFETY: the type is that of host.cpp.
    let index: QuantIndex = unsafe { host.function("host_quant_index") };
    type IndexAfter = extern "C" fn(i32, i32, i32, i32, i32, *mut i32) -> u64;
    // SAFETY: the type is that of host.cpp.
    let after: IndexAfter = unsafe { host.function("host_index_after") };
    for (outputs, columns) in [(1usize, 1usize), (16, 64), (33, 200), (48, 129)] {
        for bits in [4, 8] {
            let quants = outputs.next_multiple_of(16) * columns.next_multiple_of(64);
            let mut taken = vec![0u32; quants * bits / 32];
            for output in 0..outputs {
                for column in 0..columns {
                    let mut shift = 0;
                    let ints = [output, column, columns, bits].map(|number| number as i32);
                    let word = index(ints[0], ints[1], ints[2], ints[3], &mut shift);
                    let found = (word as usize, shift as usize);
                    assert_eq!(found, quant_index(output, column, columns, bits));
                    // Kernels compute the index of a column that is a multiple of 8, and reach the next seven
                    // from there.
                    let (first, i) = (ints[1] / 8 * 8, ints[1] % 8);
                    let word = after(ints[0], first, i, ints[2], ints[3], &mut shift);
                    assert_eq!((word as usize, shift as usize), found, "{i} after {first}");
                    let mask = ((1 << bits) - 1) << shift;
                    assert_eq!(taken[found.0] & mask, 0, "two quantized weights in one position");
                    taken[found.0] |= mask;
                }
            }
            let bits_taken: u32 = taken.iter().map(|word| word.count_ones()).sum();
            assert_eq!(bits_taken as usize, outputs * columns * bits);
        }
    }
}

#[test]
fn experts_are_chosen_as_the_reference_does() {
    let host = Host::load("choices");
    type NextChoice = extern "C" fn(*const f32, i32, i32) -> i32;
    // SAFETY: the type is that of host.cpp.
    let next: NextChoice = unsafe { host.function("host_next_choice") };
    let mut random = Random(11);
    for experts in [1, 2, 5, 8, 128] {
        for round in 0..50 {
            // Integer scores give ties. Scores far below the others have a share of zero.
            let scores: Vec<f32> =
                (0..experts).map(|_| (random.unit() * 40.0).round() * 8.0).collect();
            // With a bias, ranks may be below zero.
            let bias: Vec<f32> =
                (0..experts).map(|_| (random.unit() * 4.0).round() - 2.0).collect();
            let of_experts = OfExperts { bias: (round % 2 == 1).then_some(bias), scales: None };
            let function =
                if round % 4 < 2 { GatingFunction::Softmax } else { GatingFunction::Sigmoid };
            let gating = Gating { function, ..Gating::SOFTMAX };
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let rank = |(i, share): (usize, f32)| match (&of_experts.bias, function) {
                (Some(bias), _) => share + bias[i],
                (None, GatingFunction::Softmax) => (scores[i] - max).exp(),
                (None, GatingFunction::Sigmoid) => share,
            };
            let shares = gating.route(&scores, &OfExperts::default(), experts);
            let ranks: Vec<f32> = shares.into_iter().map(rank).collect();
            let (mut chosen, mut last) = (Vec::new(), -1);
            for top_k in 1..=experts.min(9) {
                last = next(ranks.as_ptr(), experts as i32, last);
                chosen.push(last as usize);
                let mut found = chosen.clone();
                found.sort_unstable();
                let expected = gating.route(&scores, &of_experts, top_k).into_iter();
                let expected: Vec<usize> = expected.map(|(i, _)| i).collect();
                assert_eq!(found, expected, "{scores:?} {of_experts:?}");
            }
        }
    }
    // A NaN rank is not less than others, and no expert is chosen twice.
    let ranks = [f32::NAN, 0.5, f32::NAN, -0.5];
    let mut last = -1;
    let chosen = [(); 5].map(|()| {
        last = next(ranks.as_ptr(), 4, last);
        last
    });
    assert_eq!(chosen[..4], [0, 2, 1, 3]);
    assert_eq!(chosen[4], 4, "there is no other");
}

#[test]
fn tiles_of_experts_cover_their_rows_and_chunks_lie_in_different_banks() {
    let host = Host::load("tiles");
    // SAFETY: the types are those of host.cpp.
    let (of, most, expert_of, swizzled) = unsafe {
        let of: extern "C" fn(u32, u32) -> u32 = host.function("host_tiles_of");
        let most: extern "C" fn(u32, u32, u32) -> u32 = host.function("host_most_tiles");
        let expert_of: extern "C" fn(*const u32, i32, u32) -> i32 =
            host.function("host_expert_of_tile");
        let swizzled: extern "C" fn(i32, i32) -> i32 = host.function("host_swizzled");
        (of, most, expert_of, swizzled)
    };
    let mut random = Random(12);
    for case in 0..300 {
        let (experts, tile_rows) = (1 + random.below(40), random.pick(&[1u32, 16, 128]));
        let rows: Vec<u32> =
            (0..experts).map(|_| random.pick(&[0, 0, 1, 15, 16, 17, 300])).collect();
        let mut tiles = vec![0];
        rows.iter().for_each(|rows| tiles.push(tiles.last().unwrap() + of(*rows, tile_rows)));
        let owners =
            (0..tiles[experts]).map(|tile| expert_of(tiles.as_ptr(), experts as i32, tile));
        let expected =
            rows.iter().zip(0..).flat_map(|(rows, i)| vec![i; rows.div_ceil(tile_rows) as usize]);
        assert!(owners.eq(expected), "case {case}: {rows:?} in tiles of {tile_rows}");
        assert!(tiles[experts] <= most(rows.iter().sum(), experts as u32, tile_rows));
    }
    assert_eq!([most(1, 8, 16), most(3, 8, 16), most(256, 2, 128)], [1, 3, 3]);
    let lies = |row: i32, chunk: i32| swizzled(row, chunk);
    let mut all: Vec<i32> =
        (0..48).flat_map(|row| (0..8).map(move |chunk| lies(row, chunk))).collect();
    for first in (0..48).step_by(8) {
        for chunk in 0..8 {
            // Eight chunks of 16 bytes cover the 32 banks of shared memory once.
            let mut banks: Vec<i32> = (first..first + 8).map(|row| lies(row, chunk) % 8).collect();
            banks.sort_unstable();
            assert_eq!(banks, (0..8).collect::<Vec<_>>());
        }
    }
    all.sort_unstable();
    assert_eq!(all, (0..48 * 8).collect::<Vec<_>>(), "every chunk has a place of its own");
}

/// A row of the sampler's table, in the order of `SamplerRow::words`.
fn words(params: &SamplingRow<'_>, seed: u64, output_index: u32) -> [u32; 16] {
    let penalty = |f: fn(&Penalties<'_>) -> f32, default: f32| {
        params.penalties.as_ref().map_or(default, f).to_bits()
    };
    [
        0,
        params.temperature.to_bits(),
        params.top_k.unwrap_or(0) as u32,
        params.top_p.to_bits(),
        params.min_p.to_bits(),
        penalty(|p| p.repetition, 1.0),
        penalty(|p| p.presence, 0.0),
        penalty(|p| p.frequency, 0.0),
        0,
        0,
        0,
        0,
        u32::MAX,
        output_index,
        seed as u32,
        (seed >> 32) as u32,
    ]
}

type HostSample =
    extern "C" fn(*mut f32, i32, *const [u32; 16], *const u32, *const u32, i32) -> u32;

#[test]
fn samples_are_those_of_the_sampling_reference() {
    let host = Host::load("sampling");
    // SAFETY: the types are those of host.cpp.
    let (sample, uniform) = unsafe {
        let sample: HostSample = host.function("host_sample");
        let uniform: extern "C" fn(*const [u32; 16]) -> f64 = host.function("host_uniform");
        (sample, uniform)
    };
    let mut random = Random(7);
    let mut uniforms = Vec::new();
    for case in 0..4000u32 {
        let vocab: i32 = random.pick(&[1, 2, 31, 64, 500, 1500]);
        let spread = random.pick(&[0.0, 0.5, 4.0, 30.0]);
        // Integer logits give ties, which bf16 logits have too.
        let round = random.pick(&[false, true]);
        let mut logits: Vec<f32> = (0..vocab)
            .map(|_| (random.unit() + random.unit() - 1.0) * spread)
            // Adding zero turns minus zero into zero: the reference orders the two, the kernels do not.
            .map(|logit| if round { logit.round() + 0.0 } else { logit + 0.0 })
            .collect();
        let seen =
            (0..vocab as u32).filter(|_| random.below(9) == 0).map(|id| (id, id % 3)).collect();
        let penalties = Penalties { repetition: 1.3, presence: 0.4, frequency: 0.2, seen: &seen };
        let mask: Vec<u32> =
            (0..(vocab as usize).div_ceil(32)).map(|_| random.next() as u32).collect();
        let mask_words = random.below(mask.len() + 1);
        let mut params = SamplingRow {
            temperature: random.pick(&[0.0, 0.3, 1.0, 1.7]),
            top_k: random.pick(&[None, None, Some(1), Some(2), Some(40), Some(5000)]),
            top_p: random.pick(&[1.0, 1.0, 0.95, 0.5, 0.01]),
            min_p: random.pick(&[0.0, 0.0, 0.05, 0.5, 1.0]),
            uniform: 0.0,
            penalties: (case % 3 == 0).then_some(penalties),
            logit_bias: &[],
            banned: Vec::new(),
            mask: (case % 5 == 0).then_some(&mask[..mask_words]),
            logprobs: None,
        };
        let row = words(&params, u64::from(case) << 20, case % 7);
        params.uniform = uniform(&row);
        uniforms.push(params.uniform);
        let expected = sample_row_reference(&logits, &params);
        let counts: Vec<u32> = (0..vocab as u32)
            // The highest bit marks a token of the prompt (`FROM_PROMPT`). Some tokens occur there alone, with a
            // count of 0.
            .map(|id| seen.get(&id).map_or(0, |&times| times | 0x8000_0000))
            .collect();
        let counts = params.penalties.map_or(std::ptr::null(), |_| counts.as_ptr());
        let mask = params.mask.map_or(std::ptr::null(), <[u32]>::as_ptr);
        let sampled = sample(logits.as_mut_ptr(), vocab, &row, counts, mask, mask_words as i32);
        assert_eq!((sampled != u32::MAX).then_some(sampled), expected, "case {case}: {params:?}");
    }
    let mean = uniforms.iter().sum::<f64>() / uniforms.len() as f64;
    assert!((mean - 0.5).abs() < 0.02 && uniforms.iter().all(|u| (0.0..1.0).contains(u)));
}
