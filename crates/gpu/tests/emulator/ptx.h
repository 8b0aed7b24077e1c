// PTX instructions as functions. The stand-in for nvcc replaces each inline instruction by a call with the operands in
// their order; `.` and `:` in the name become `_`. Included by kernel.h. Source of all: NVIDIA, PTX ISA.
#pragma once

namespace emulated::ptx {

// The operand `_`.
struct Ignored {};

template <typename T>
void set(T& to, std::type_identity_t<T> value) {
  to = value;
}
template <typename T>
void set(Ignored&&, T) {}

// ---- Copies to shared memory -----------------------------------------------------------------------

template <typename From>
void cp_async_cg_shared_global(uint32_t to, From from, uint32_t bytes, uint32_t present) {
  machine->copy_later(to, reinterpret_cast<const void*>(from), bytes, present);
}
template <typename From>
void cp_async_cg_shared_global(uint32_t to, From from, uint32_t bytes) {
  cp_async_cg_shared_global(to, from, bytes, bytes);
}
template <typename... Operands>
void cp_async_cg_shared_global_L2__128B(Operands... operands) {
  cp_async_cg_shared_global(operands...);
}
template <typename... Operands>
void cp_async_ca_shared_global(Operands... operands) {
  cp_async_cg_shared_global(operands...);
}
inline void cp_async_commit_group() { machine->end_group(); }
inline void cp_async_wait_group(uint32_t but) { machine->wait_for_groups(but); }

// ---- Matrices --------------------------------------------------------------------------------------

struct Rows {
  uint32_t row;
  uint32_t words[4];
};

// Moves four matrices of 8 by 8 elements of 16 bits between shared memory and the lanes. Lane `l` passes the address of
// row `l % 8` of matrix `l / 8`. It has two elements of each matrix: of row `l / 4`, or of column `l / 4` if
// transposed.
template <bool kTransposed, bool kStore>
EMULATED_UNWATCHED void move_matrices(void* const operands[32]) {
  for (uint32_t lane = 0; lane < 32; ++lane) {
    auto* own = static_cast<Rows*>(operands[lane]);
    if (own == nullptr) machine->fault("a lane takes no part in moving matrices");
    for (uint32_t matrix = 0; matrix < 4; ++matrix) {
      uint16_t elements[2];
      std::memcpy(elements, &own->words[matrix], 4);
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t row = kTransposed ? lane % 4 * 2 + i : lane / 4;
        const uint32_t column = kTransposed ? lane / 4 : lane % 4 * 2 + i;
        const uint32_t address = static_cast<Rows*>(operands[matrix * 8 + row])->row;
        auto* in_memory = static_cast<uint16_t*>(at_shared(address, 16)) + column;
        if (machine->watches_block) machine->lane_accessed(lane, in_memory, sizeof *in_memory, kStore ? Access::kWrite : Access::kRead);
        if constexpr (kStore) {
          *in_memory = elements[i];
        } else {
          elements[i] = *in_memory;
        }
      }
      std::memcpy(&own->words[matrix], elements, 4);
    }
  }
}

template <bool kTransposed, typename A, typename B, typename C, typename D>
void load_matrices(A&& a, B&& b, C&& c, D&& d, uint32_t row) {
  Rows own{row, {}};
  machine->collective(0xffffffffu, &own, move_matrices<kTransposed, false>);
  set(std::forward<A>(a), own.words[0]);
  set(std::forward<B>(b), own.words[1]);
  set(std::forward<C>(c), own.words[2]);
  set(std::forward<D>(d), own.words[3]);
}
template <typename... Operands>
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(Operands&&... operands) {
  load_matrices<false>(std::forward<Operands>(operands)...);
}
template <typename... Operands>
void ldmatrix_sync_aligned_trans_m8n8_x4_shared_b16(Operands&&... operands) {
  load_matrices<true>(std::forward<Operands>(operands)...);
}
inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  Rows own{row, {a, b, c, d}};
  machine->collective(0xffffffffu, &own, move_matrices<false, true>);
  // PTX does not guarantee it, but a warp's accesses of shared memory take effect in order, and FlashInfer relies on
  // that.
  sync_warp(0xffffffffu);
}

template <Element kElement>
EMULATED_UNWATCHED void multiply(void* const operands[32]) {
  machine->multiply(kElement, operands);
}

template <Element kElement, typename D0, typename D1, typename D2, typename D3>
void multiply_add(D0&& d0, D1&& d1, D2&& d2, D3&& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                  uint32_t b1, float c0, float c1, float c2, float c3) {
  Product own{{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};
  machine->collective(0xffffffffu, &own, multiply<kElement>);
  set(std::forward<D0>(d0), own.sum[0]);
  set(std::forward<D1>(d1), own.sum[1]);
  set(std::forward<D2>(d2), own.sum[2]);
  set(std::forward<D3>(d3), own.sum[3]);
}
template <typename... Operands>
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(Operands&&... operands) {
  multiply_add<Element::kBf16>(std::forward<Operands>(operands)...);
}
template <typename... Operands>
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(Operands&&... operands) {
  multiply_add<Element::kF16>(std::forward<Operands>(operands)...);
}

// ---- Arithmetic ------------------------------------------------------------------------------------

inline float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
inline void ex2_approx_ftz_f32(float& to, float x) { to = flush(std::exp2(flush(x))); }
inline void lg2_approx_ftz_f32(float& to, float x) { to = std::log2(flush(x)); }
inline void rcp_approx_ftz_f32(float& to, float x) { to = flush(1.0f / flush(x)); }
inline void rsqrt_approx_ftz_f32(float& to, float x) { to = 1.0f / std::sqrt(flush(x)); }
inline void tanh_approx_f32(float& to, float x) { to = std::tanh(x); }
// Converts two 8-bit floats to two 16-bit floats.
inline void cvt_rn_f16x2_e4m3x2(uint32_t& to, uint16_t pair) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
  to = halves.x | uint32_t(halves.y) << 16;
}
template <typename T>
void shfl_sync_bfly_b32(T& to, T value, uint32_t bits, uint32_t, uint32_t mask) {
  to = shuffle(mask, value, lane() ^ bits);
}
template <typename T>
void mov_u32(T& to, uint32_t value) {
  to = static_cast<T>(value);
}

// Bitwise lookup: the bits of the three operands at a position form an index of three bits, which selects the result
// from `table`.
inline void lop3_b32(uint32_t& to, uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  to = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    if ((table >> i & 1) != 0) to |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
}

// A request for the L2 cache changes nothing. Those beyond an allocation would be lost on a GPU, so they are faults here.
template <typename From>
void prefetch_global_L2(From from) {
  machine->prefetched(reinterpret_cast<const void*>(from));
}
inline void griddepcontrol_wait() { machine->wait_for_inputs(); }
inline void griddepcontrol_launch_dependents() {}

// An instruction that is not implemented.
inline uint32_t missing(const char* name) { machine->fault(name); }

}  // namespace emulated::ptx
