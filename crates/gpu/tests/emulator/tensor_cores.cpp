// Matrix products of tensor cores.
#include <cuda_fp16.h>

#include <bit>
#include <vector>

#include "gpu.h"

namespace emulated {

namespace {

float number_of(Element element, uint32_t word, uint32_t index) {
  const uint32_t bits = word >> 16 * index & 0xffff;
  if (element == Element::kBf16) return std::bit_cast<float>(bits << 16);
  static const std::vector<float> halves = [] {
    std::vector<float> numbers;
    for (uint32_t half = 0; half <= 0xffff; ++half) numbers.push_back(__half(__half_raw{static_cast<unsigned short>(half)}));
    return numbers;
  }();
  return halves[bits];
}

}  // namespace

// NVIDIA does not specify how tensor cores round a sum of 16 products. Here it is rounded once: doubles hold the
// products exactly.
void Gpu::multiply(Element element, void* const operands[32]) {
  float a[16][16];
  double b[16][8], sums[16][8];
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const auto* own = static_cast<const Product*>(operands[lane]);
    if (own == nullptr) fault("a lane takes no part in a product of matrices");
    for (uint32_t i = 0; i < 8; ++i) {
      a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] = number_of(element, own->a[i / 2], i % 2);
      if (i < 4) b[lane % 4 * 2 + i % 2 + i / 2 * 8][lane / 4] = number_of(element, own->b[i / 2], i % 2);
      if (i < 4) sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = own->sum[i];
    }
  }
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t k = 0; k < 16; ++k) {
      for (uint32_t column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
    }
  }
  for (uint32_t lane = 0; lane < 32; ++lane) {
    auto* own = static_cast<Product*>(operands[lane]);
    for (uint32_t i = 0; i < 4; ++i) own->sum[i] = static_cast<float>(sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
  }
}

}  // namespace emulated
