// cuBLASLt on the emulated GPU: products of e4m3 matrices with scales of matrices, rows or blocks.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "gpu.h"

namespace {

// Values of cuBLASLt. Source: NVIDIA, cuBLAS, `cublasLtMatmulDescAttributes_t`, `cublasLtMatmulMatrixScale_t`, `cublasStatus_t`.
constexpr int kTransA = 3;
constexpr int kScalePointerA = 17;
constexpr int kScalePointerB = 18;
constexpr int kFastAccumulation = 25;
constexpr int kScaleModeA = 31;
constexpr int kScaleModeB = 32;
constexpr int kScalar = 0;
constexpr int kOuterVector = 3;
constexpr int kVector128 = 4;
constexpr int kBlock128 = 5;
constexpr int kF16 = 2;
constexpr int kBf16 = 14;
constexpr int kE4m3 = 28;
constexpr int kInvalidValue = 7;
constexpr int kNotSupported = 15;

struct Operation {
  int transposed = 0;
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
  int a_mode = kScalar;
  int b_mode = kScalar;
};

struct Layout {
  int type;
  size_t rows, columns;
  int64_t stride;
};

struct Product {
  Operation operation;
  Layout a, b, d;
  float alpha, beta;
  const uint8_t* from_a;
  const uint8_t* from_b;
  void* to;
};

float value_of(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

// The scale of row or column `outer` and of input `inner` of a matrix with `outers` rows or columns and `k` inputs.
float scale_of(const float* scales, int mode, size_t outer, size_t inner, size_t outers, size_t k) {
  switch (mode) {
    case kOuterVector: return scales[outer];
    case kVector128: return scales[inner / 128 * outers + outer];
    case kBlock128: {
      const size_t blocks = (k + 127) / 128;
      return scales[outer / 128 * ((blocks + 3) / 4 * 4) + inner / 128];
    }
    default: return scales[0];
  }
}

template <typename T>
void multiply(const Product& p) {
  const size_t k = p.a.rows, m = p.a.columns, n = p.b.columns;
  const auto widened = [&](const uint8_t* from, const Layout& layout) {
    std::vector<float> values(layout.columns * k);
    for (size_t i = 0; i < layout.columns; ++i) {
      for (size_t j = 0; j < k; ++j) values[i * k + j] = value_of(from[i * layout.stride + j]);
    }
    return values;
  };
  const std::vector<float> a = widened(p.from_a, p.a), b = widened(p.from_b, p.b);
  const Operation& of = p.operation;
  T* d = static_cast<T*>(p.to);
  for (size_t column = 0; column < n; ++column) {
    for (size_t row = 0; row < m; ++row) {
      float total = 0.0f;
      // Scales of blocks differ from block to block; the others are those of the first.
      for (size_t first = 0; first < k; first += 128) {
        float sum = 0.0f;
        for (size_t i = first; i < k && i < first + 128; ++i) sum += a[row * k + i] * b[column * k + i];
        total += sum * (scale_of(of.a_scales, of.a_mode, row, first, m, k) * scale_of(of.b_scales, of.b_mode, column, first, n, k));
      }
      T& out = d[column * p.d.stride + row];
      const float before = p.beta == 0.0f ? 0.0f : p.beta * static_cast<float>(out);
      out = T(p.alpha * total + before);
    }
  }
}

// Combinations of scales that a Hopper GPU has.
bool is_supported(const Operation& of, const Layout& a, const Layout& b, const Layout& d) {
  const bool types = a.type == kE4m3 && b.type == kE4m3 && (d.type == kBf16 || d.type == kF16);
  const bool modes = (of.a_mode == kScalar && of.b_mode == kScalar) || (of.a_mode == kOuterVector && of.b_mode == kOuterVector) ||
                     (of.a_mode == kBlock128 && of.b_mode == kVector128);
  const bool shapes = a.rows == b.rows && a.columns == d.rows && b.columns == d.columns;
  const bool aligned = a.rows % 16 == 0 && a.columns % 16 == 0;
  return of.transposed == 1 && types && modes && shapes && aligned;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130100; }
int cublasLtCreate(void** handle) { return *handle = new char, 0; }
int cublasLtDestroy(void* handle) { return delete static_cast<char*>(handle), 0; }

int cublasLtMatmulDescCreate(void** made, int, int) { return *made = new Operation, 0; }
int cublasLtMatmulDescDestroy(void* made) { return delete static_cast<Operation*>(made), 0; }

int cublasLtMatmulDescSetAttribute(void* made, int attribute, const void* value, size_t bytes) {
  Operation& of = *static_cast<Operation*>(made);
  const auto take = [&](auto& to) {
    if (bytes != sizeof to) return kInvalidValue;
    std::memcpy(&to, value, bytes);
    return 0;
  };
  switch (attribute) {
    case kTransA: return take(of.transposed);
    case kScalePointerA: return take(of.a_scales);
    case kScalePointerB: return take(of.b_scales);
    case kScaleModeA: return take(of.a_mode);
    case kScaleModeB: return take(of.b_mode);
    case kFastAccumulation: return bytes == 1 ? 0 : kInvalidValue;
    default: return kInvalidValue;
  }
}

int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  return *made = new Layout{type, rows, columns, stride}, 0;
}
int cublasLtMatrixLayoutDestroy(void* made) { return delete static_cast<Layout*>(made), 0; }

int cublasLtMatmulPreferenceCreate(void** made) { return *made = new char, 0; }
int cublasLtMatmulPreferenceDestroy(void* made) { return delete static_cast<char*>(made), 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return 0; }

// The result begins with the algorithm, 64 bytes, and the bytes of workspace; then comes its status.
int cublasLtMatmulAlgoGetHeuristic(void*, void* operation, void* a, void* b, void*, void* d, void*, int, void* result, int* count) {
  const bool found = is_supported(*static_cast<Operation*>(operation), *static_cast<Layout*>(a), *static_cast<Layout*>(b),
                                  *static_cast<Layout*>(d));
  if (!found) return kNotSupported;
  std::memset(result, 0, 64 + sizeof(size_t) + sizeof(int));
  return *count = 1, 0;
}

int cublasLtMatmul(void*, void* operation, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                   const void* beta, const void* c, void*, void* d, void* d_layout, const void* algorithm, void*, size_t,
                   void* stream) {
  const Product product{*static_cast<Operation*>(operation), *static_cast<Layout*>(a_layout), *static_cast<Layout*>(b_layout),
                        *static_cast<Layout*>(d_layout), *static_cast<const float*>(alpha), *static_cast<const float*>(beta),
                        static_cast<const uint8_t*>(a), static_cast<const uint8_t*>(b), d};
  // Without a product, so that the caller finds a wrong one.
  const char* asked = std::getenv("CANDLEPOWER_EMULATED_CUBLASLT");
  const bool is_wrong = asked != nullptr && std::strcmp(asked, "wrong") == 0;
  if (is_wrong) return 0;
  if (c != d || algorithm == nullptr || !is_supported(product.operation, product.a, product.b, product.d)) return kInvalidValue;
  emulated::Gpu& gpu = emulated::Gpu::the();
  const std::lock_guard guard(gpu.lock);
  return gpu.submit(stream, [=] { product.d.type == kF16 ? multiply<__half>(product) : multiply<__nv_bfloat16>(product); });
}

}  // extern "C"
