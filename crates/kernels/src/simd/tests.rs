//! Every instruction set gives the same bits, and the elementary functions are accurate.

use super::*;

/// Applies a function to sixteen values.
struct Apply<'a> {
    function: Function,
    x: &'a [f32; LANES],
}

#[derive(Clone, Copy, Debug)]
enum Function {
    Exp,
    Tanh,
    Silu,
    Gelu,
    GeluTanh,
}

impl WithSimd for Apply<'_> {
    type Output = [f32; LANES];

    #[inline(always)]
    fn with<S: Simd>(self, s: S) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: both arrays hold sixteen f32.
        unsafe {
            let x = s.load(self.x.as_ptr());
            let y = match self.function {
                Function::Exp => math::exp(s, x),
                Function::Tanh => math::tanh(s, x),
                Function::Silu => math::silu(s, x),
                Function::Gelu => math::gelu(s, x),
                Function::GeluTanh => math::gelu_tanh(s, x),
            };
            s.store(out.as_mut_ptr(), y);
        }
        out
    }
}

/// Evaluates on a grid over `low..high`, checks that all instruction sets agree, calls `check(x, y)`.
fn scan(function: Function, low: f32, high: f32, check: impl Fn(f64, f64)) {
    let steps = 20_000;
    for block in 0..steps / LANES {
        let x = std::array::from_fn(|lane| {
            low + (high - low) * (block * LANES + lane) as f32 / steps as f32
        });
        let results: Vec<_> =
            Isa::all().into_iter().map(|isa| isa.run(Apply { function, x: &x })).collect();
        for result in &results {
            assert_eq!(
                result.map(f32::to_bits),
                results[0].map(f32::to_bits),
                "{function:?} of {x:?}"
            );
        }
        for (x, y) in x.iter().zip(&results[0]) {
            check(f64::from(*x), f64::from(*y));
        }
    }
}

#[test]
fn exp_is_accurate_to_two_ulp() {
    scan(Function::Exp, -87.3, 88.0, |x, y| {
        let want = x.exp();
        assert!(
            (y - want).abs() <= 2.0 * f64::from(f32::EPSILON) * want,
            "exp({x}) = {y}, not {want}"
        );
    });
}

#[test]
fn exp_of_special_values() {
    for isa in Isa::all() {
        let mut x = [0.0; LANES];
        x[..6].copy_from_slice(&[0.0, -0.0, f32::NEG_INFINITY, -1000.0, 1000.0, f32::NAN]);
        let y = isa.run(Apply { function: Function::Exp, x: &x });
        assert_eq!(y[..5], [1.0, 1.0, 0.0, 0.0, f32::INFINITY], "{isa:?}");
        assert!(y[5].is_nan(), "{isa:?}");
    }
}

#[test]
fn tanh_and_the_activations_are_accurate() {
    scan(Function::Tanh, -12.0, 12.0, |x, y| {
        let want = x.tanh();
        assert!(
            (y - want).abs() <= 4.0 * f64::from(f32::EPSILON) * want.abs(),
            "tanh({x}) = {y}, not {want}"
        );
    });
    for (function, act) in [
        (Function::Silu, crate::Activation::Silu),
        (Function::Gelu, crate::Activation::Gelu),
        (Function::GeluTanh, crate::Activation::GeluTanh),
    ] {
        scan(function, -30.0, 30.0, |x, y| {
            let want = f64::from(crate::activation_reference(x as f32, act));
            assert!(
                (y - want).abs() <= 3e-7 * x.abs().max(1.0),
                "{function:?}({x}) = {y}, not {want}"
            );
        });
    }
}

/// Runs the operations whose implementations differ most.
struct Shuffle<'a>(&'a [f32; LANES]);

impl WithSimd for Shuffle<'_> {
    type Output = ([f32; 2], Vec<[f32; LANES]>);

    #[inline(always)]
    fn with<S: Simd>(self, s: S) -> Self::Output {
        let mut outputs = Vec::new();
        // SAFETY: the array holds sixteen f32, which are also 32 bf16 or f16.
        unsafe {
            let x = s.load(self.0.as_ptr());
            let mut push = |value| {
                let mut out = [7.0; LANES];
                s.store(out.as_mut_ptr(), value);
                outputs.push(out);
            };
            for from in 0..17 {
                for to in from..18 {
                    push(s.keep(x, from, to, s.splat(-1.0)));
                }
            }
            push(s.load_half(self.0.as_ptr()));
            push(s.bf16_high(x));
            push(s.bf16_low(x));
            push(s.load_f16(self.0.as_ptr().cast()));
            let bytes = self.0.as_ptr().cast();
            push(s.load_u8(bytes));
            push(s.load_i8(bytes));
            push(s.load_u4::<0>(bytes));
            push(s.load_u4::<4>(bytes));
            for (step, half) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                push(s.load_planes::<2>(bytes, step, half));
                push(s.load_planes::<3>(bytes, step, half));
                push(s.load_planes::<5>(bytes, step, half));
                push(s.load_planes::<6>(bytes, step, half));
            }
            push(s.lookup_u4::<0>(x, bytes));
            push(s.lookup_u4::<4>(x, bytes));
            for first in (0..=255u8).step_by(LANES) {
                let quants: [u8; LANES] = std::array::from_fn(|lane| first + lane as u8);
                push(s.load_e4m3_part(quants.as_ptr()));
            }
            push(s.round(x));
            let mut half = [7.0; LANES];
            s.store_half(half.as_mut_ptr(), x);
            outputs.push(half);
            ([s.reduce_max(x), s.reduce_add(x)], outputs)
        }
    }
}

/// Thirty-two values as words of two bf16.
struct Pairs<'a>([&'a [f32; LANES]; 2]);

impl WithSimd for Pairs<'_> {
    /// Pairs of neighbours, and pairs of a value of the first and one of the second.
    type Output = [[u32; LANES]; 2];

    #[inline(always)]
    fn with<S: Simd>(self, s: S) -> Self::Output {
        let mut out = [[7.0; LANES]; 2];
        // SAFETY: the arrays hold sixteen f32.
        unsafe {
            let [first, second] = self.0.map(|numbers| s.load(numbers.as_ptr()));
            s.store(out[0].as_mut_ptr(), s.bf16_pairs(first, second));
            s.store(out[1].as_mut_ptr(), s.bf16_words(first, second));
        }
        out.map(|words| words.map(f32::to_bits))
    }
}

#[test]
fn all_instruction_sets_round_to_the_nearest_bf16() {
    let special = [0.0, -0.0, 1.0, f32::MIN_POSITIVE, f32::MAX, f32::NEG_INFINITY, 1.003_906_3];
    // Ties go to even mantissas: the first one down, the second one up.
    let ties = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0xbf80_8000].map(f32::from_bits);
    let nans = [0x7f80_0001, 0xffff_ffff, 0x7fff_ffff].map(f32::from_bits);
    let numbers: Vec<f32> = special.into_iter().chain(ties).chain(nans).cycle().take(45).collect();
    for first in 0..13 {
        let at = |from: usize| std::array::from_fn::<f32, LANES, _>(|lane| numbers[from + lane]);
        let (a, b) = (at(first), at(first + LANES));
        let all = [a, b].concat();
        let bits = |i: usize| u32::from(half::bf16::from_f32(all[i]).to_bits());
        let neighbours = std::array::from_fn(|word| bits(2 * word + 1) << 16 | bits(2 * word));
        let words = std::array::from_fn(|word| bits(word) << 16 | bits(LANES + word));
        for isa in Isa::all() {
            for found in [isa.run_with_dot(Pairs([&a, &b])), isa.run(Pairs([&a, &b]))] {
                assert_eq!(found, [neighbours, words], "{isa:?}");
            }
        }
    }
}

/// A dot product of sixteen words.
struct Dot<'a>([&'a [f32; LANES]; 3]);

impl WithSimd for Dot<'_> {
    type Output = [f32; LANES];

    #[inline(always)]
    fn with<S: Simd>(self, s: S) -> Self::Output {
        let mut out = [7.0; LANES];
        // SAFETY: the arrays hold sixteen f32.
        unsafe {
            let [a, b, c] = self.0.map(|numbers| s.load(numbers.as_ptr()));
            s.store(out.as_mut_ptr(), s.dot_bf16(a, b, c));
        }
        out
    }
}

#[test]
fn all_instruction_sets_round_dot_products_twice() {
    let mut state = 1u32;
    let mut number = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    for _ in 0..1000 {
        let mut halves = || std::array::from_fn::<_, LANES, _>(|_| half::bf16::from_f32(number()));
        let (high, low) = ([halves(), halves()], [halves(), halves()]);
        let words = |i: usize| {
            std::array::from_fn(|lane| {
                let bits = |half: half::bf16| u32::from(half.to_bits());
                f32::from_bits(bits(high[i][lane]) << 16 | bits(low[i][lane]))
            })
        };
        let c = std::array::from_fn(|_| number() * 4.0);
        let product = |halves: &[[half::bf16; LANES]; 2], lane: usize, sum: f32| {
            halves[0][lane].to_f32().mul_add(halves[1][lane].to_f32(), sum)
        };
        let want: [f32; LANES] =
            std::array::from_fn(|lane| product(&low, lane, product(&high, lane, c[lane])));
        for isa in Isa::all() {
            assert_eq!(isa.run_with_dot(Dot([&words(0), &words(1), &c])), want, "{isa:?}");
        }
    }
}

#[test]
fn all_instruction_sets_load_mask_and_reduce_alike() {
    let x: [f32; LANES] = std::array::from_fn(|lane| (lane as f32 * 37.7) % 19.0 - 9.0);
    let results: Vec<_> = Isa::all().into_iter().map(|isa| isa.run(Shuffle(&x))).collect();
    let sums = |numbers: &[f32]| -> Vec<f32> {
        let (first, second) = numbers.split_at(numbers.len() / 2);
        first.iter().zip(second).map(|(a, b)| a + b).collect()
    };
    let sum = sums(&sums(&sums(&sums(&x))))[0];
    assert_eq!(results[0].0, [x.iter().copied().fold(f32::MIN, f32::max), sum]);
    assert_eq!(results[0].1[3], std::array::from_fn(|lane| if lane < 3 { x[lane] } else { -1.0 }));
    for result in &results {
        assert_eq!(result, &results[0]);
    }
}
