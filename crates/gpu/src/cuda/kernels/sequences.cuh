// The tokens of one sequence in a step, and the slot of its recurrent state.
#pragma once

#include "common.cuh"

namespace candlepower {

struct Sequence {
  int32_t start;
  int32_t count;  // 0 if the tokens of the sequence are not part of the step
  uint32_t slot;
  bool begins;  // the step begins with the sequence's first token
};

// Reads the arguments' `query_start` [seqs + 1], `slots` [seqs], `positions` [tokens] and `tokens`.
template <typename Args>
__device__ __forceinline__ Sequence sequence_of(const Args& args, int32_t index) {
  const uint32_t start = args.query_start[index];
  const uint32_t end = args.query_start[index + 1];
  if (start >= end || end > static_cast<uint32_t>(args.tokens)) return {0, 0, kNoSlot, false};
  return {static_cast<int32_t>(start), static_cast<int32_t>(end - start), args.slots[index],
          args.positions[start] == 0};
}

}  // namespace candlepower
