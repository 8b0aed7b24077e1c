// cuBLAS and cuRAND on the emulated GPU: handles, and the one matrix product that candlepower calls.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "gpu.h"

namespace {

// Values of cuBLAS. Source: NVIDIA, cuBLAS, `cublasOperation_t`, `cudaDataType_t`, `cublasStatus_t`.
constexpr int kTransposed = 1;
constexpr int kF16 = 2;
constexpr int kBf16 = 14;
constexpr int kInvalidValue = 7;
constexpr int kNotSupported = 15;

// The behaviours of products that CANDLEPOWER_EMULATED_CUBLAS can ask for. With `by_rows`, order and rounding of sums depend
// on the number of rows, because a library may choose among kernels. With `refused` there are no products.
bool is_asked(std::string_view behaviour) {
  const char* asked = std::getenv("CANDLEPOWER_EMULATED_CUBLAS");
  return asked != nullptr && asked == behaviour;
}

struct Handle {
  void* stream = nullptr;
};

struct Product {
  int m, n, k;
  float alpha, beta;
  const void* a;
  int lda;
  const void* b;
  int ldb;
  void* c;
  int ldc;
};

template <typename T>
std::vector<float> widened(const void* from, int rows, int columns, int stride) {
  std::vector<float> numbers(size_t(rows) * columns);
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      numbers[size_t(i) * columns + j] = static_cast<float>(static_cast<const T*>(from)[size_t(i) * stride + j]);
    }
  }
  return numbers;
}

// Sixteen partial sums, so that the compiler vectorizes the loop.
float dot(const float* a, const float* b, int k) {
  float sums[16] = {};
  int i = 0;
  for (; i + 16 <= k; i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
  }
  float sum = 0.0f;
  for (float part : sums) sum += part;
  for (; i < k; ++i) sum += a[i] * b[i];
  return sum;
}

// The sum of `parts` sums, each of which is rounded to T.
template <typename T>
float dot_in_parts(const float* a, const float* b, int k, int parts) {
  float sum = 0.0f;
  for (int part = 0; part < parts; ++part) {
    const int begin = int(int64_t(k) * part / parts);
    const int end = int(int64_t(k) * (part + 1) / parts);
    sum += static_cast<float>(T(dot(a + begin, b + begin, end - begin)));
  }
  return sum;
}

// c = alpha * a^T b + beta * c in column-major order: a column of a or b is k contiguous elements.
template <typename T>
void multiply(const Product& p) {
  const std::vector<float> a = widened<T>(p.a, p.m, p.k, p.lda);
  const std::vector<float> b = widened<T>(p.b, p.n, p.k, p.ldb);
  T* c = static_cast<T*>(p.c);
  const int parts = !is_asked("by_rows") || p.n > 32 ? 1 : p.n > 4 ? 2 : 4;
  for (int j = 0; j < p.n; ++j) {
    for (int i = 0; i < p.m; ++i) {
      T& out = c[size_t(j) * p.ldc + i];
      // If beta is zero, c is not read.
      const float before = p.beta == 0.0f ? 0.0f : p.beta * static_cast<float>(out);
      const float* row = &a[size_t(i) * p.k];
      const float* column = &b[size_t(j) * p.k];
      const float sum = parts == 1 ? dot(row, column, p.k) : dot_in_parts<T>(row, column, p.k, parts);
      out = T(p.alpha * sum + before);
    }
  }
}

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) { return *handle = new Handle, 0; }
int cublasDestroy_v2(void* handle) { return delete static_cast<Handle*>(handle), 0; }
int cublasSetStream_v2(void* handle, void* stream) { return static_cast<Handle*>(handle)->stream = stream, 0; }
int cublasSetWorkspace_v2(void*, void*, size_t) { return 0; }
int cublasSetMathMode(void*, int) { return 0; }

int cublasGemmEx(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda,
                 const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int, int) {
  if (is_asked("refused")) return kNotSupported;
  if (op_a != kTransposed || op_b == kTransposed || type_a != type_b || type_a != type_c) return kInvalidValue;
  if ((type_a != kF16 && type_a != kBf16) || lda < k || ldb < k || ldc < m) return kInvalidValue;
  const Product product{m, n, k, *static_cast<const float*>(alpha), *static_cast<const float*>(beta), a, lda, b, ldb, c, ldc};
  emulated::Gpu& gpu = emulated::Gpu::the();
  const std::lock_guard guard(gpu.lock);
  return gpu.submit(static_cast<Handle*>(handle)->stream,
                    [=] { type_a == kF16 ? multiply<__half>(product) : multiply<__nv_bfloat16>(product); });
}

int curandCreateGenerator(void** generator, int) { return *generator = new char, 0; }
int curandDestroyGenerator(void* generator) { return delete static_cast<char*>(generator), 0; }
int curandSetStream(void*, void*) { return 0; }
int curandSetPseudoRandomGeneratorSeed(void*, unsigned long long) { return 0; }
int curandSetGeneratorOffset(void*, unsigned long long) { return 0; }

}  // extern "C"
