#include "races.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace emulated {

namespace {

// The functions and source lines of an address, from addr2line, from the innermost one outwards through the inlined
// calls.
std::string source_of(const void* code) {
  Dl_info module{};
  if (dladdr(code, &module) == 0) return "an unknown place";
  // The call is before its return address.
  const auto offset = static_cast<const char*>(code) - static_cast<const char*>(module.dli_fbase) - 1;
  char command[4096];
  std::snprintf(command, sizeof command, "addr2line -f -i -C -e '%s' %tx | cut -c-160 | sed 's/^/    /'", module.dli_fname, offset);
  std::string source;
  if (FILE* answer = popen(command, "r")) {
    for (char part[256]; std::fgets(part, sizeof part, answer) != nullptr;) source += part;
    pclose(answer);
  }
  return source;
}

// A known race of FlashInfer's that does no harm. All warps of a block merge their partial results of rows, and one of
// them writes the output rows while others may still read parts of them; the sums of those others are not used.
bool is_harmless(const std::string& one, const std::string& other) {
  const auto joins = [](const std::string& source) { return source.find("threadblock_sync_mdo_states") != std::string::npos; };
  const auto writes = [](const std::string& source) { return source.find("write_o_reg_gmem") != std::string::npos; };
  return (joins(one) && writes(other)) || (joins(other) && writes(one));
}

}  // namespace

void Races::begin_launch(const Launch& launch) {
  launch_ = &launch;
  ++launch_number_;
}

void Races::end_launch() {
  compare_rewrites();
  if (found_) std::abort();
  launch_ = nullptr;
}

void Races::begin_block(uint32_t block, uint32_t threads) {
  compare_rewrites();
  block_ = block;
  time_ = 1;
  met_ = 0;
  lanes_.assign(threads, Lane{});
}

void Races::at_barrier() {
  compare_rewrites();
  met_ = ++time_;
}

void Races::sync_warp(uint32_t first, uint32_t mask) {
  uint32_t known[32] = {};
  const auto each = [&](auto&& visit) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1) != 0 && first + lane < lanes_.size()) visit(lane, lanes_[first + lane]);
    }
  };
  each([&](uint32_t lane, Lane& own) {
    for (uint32_t i = 0; i < 32; ++i) known[i] = std::max(known[i], own.known[i]);
    // Consistent with `access`: the block may have passed a barrier after the lane's time was set.
    known[lane] = std::max({known[lane], own.time, met_});
  });
  ++time_;
  each([&](uint32_t, Lane& own) {
    std::copy(known, known + 32, own.known);
    own.time = time_;
  });
}

Races::Page& Races::page(uintptr_t number) {
  Known& known = known_[number % known_.size()];
  if (known.page == nullptr || known.number != number) {
    auto& found = pages_[number];
    if (found == nullptr) found = std::make_unique<Page>();
    known = {number, found.get()};
  }
  return *known.page;
}

void Races::forget(const void* begin, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(begin) / kPage;
  for (uintptr_t i = 0; i < bytes / kPage; ++i) pages_.erase(first + i);
  known_ = {};
}

// Whether the earlier access is ordered before the current one, or has no bytes in common with it.
bool Races::is_ordered(const Stamp& before, const Stamp& now, uintptr_t at) const {
  if (before.launch != now.launch || (before.bytes() & now.bytes()) == 0) return true;
  if (before.block != now.block) return at - shared_ < kMaxSharedBytes;
  const uint32_t thread = now.thread();
  if (before.thread() == thread || before.time() < met_) return true;
  return before.thread() / 32 == thread / 32 && before.time() <= lanes_[thread].known[before.thread() % 32];
}

void Races::access(uint32_t thread, const void* at, size_t bytes, Access access, const void* code) {
  compare_rewrites();
  if (code_ == nullptr) code_ = static_cast<const char*>(code);
  const bool atomic = access == Access::kAtomic;
  const uint32_t time = std::max(lanes_[thread].time, met_);
  const auto from_code = static_cast<int32_t>(static_cast<const char*>(code) - code_);
  const auto first = reinterpret_cast<uintptr_t>(at);
  const uintptr_t end = first + bytes;
  Word* words = nullptr;
  for (uintptr_t address = first / kWord * kWord; address < end; address += kWord) {
    if (words == nullptr || address % kPage == 0) words = page(address / kPage).words;
    const uintptr_t before = first > address ? first - address : 0;
    const uintptr_t behind = address + kWord > end ? address + kWord - end : 0;
    const uint32_t of_word = (15u << before & 15u) & 15u >> behind;
    const Stamp now{launch_number_, block_, thread | of_word << 10 | uint32_t(atomic) << 14 | time << 15, from_code};
    Word& word = words[address % kPage / kWord];
    if (!is_ordered(word.write, now, address) && !(atomic && word.write.atomic())) {
      const Race race{word.write, now, access, true, address};
      if (access == Access::kWrite) {
        rewrites_.push_back({race, value_of(race)});
      } else {
        report(race);
      }
    }
    if (access == Access::kRead) {
      // Two readers of different warps are kept.
      if (word.read.launch == now.launch && word.read.thread() / 32 != thread / 32) word.other_read = word.read;
      word.read = now;
      continue;
    }
    for (const Stamp* read : {&word.read, &word.other_read}) {
      if (!is_ordered(*read, now, address)) report({*read, now, access, false, address});
    }
    word.write = now;
  }
}

// The current content of the bytes that both accesses have in common.
uint32_t Races::value_of(const Race& race) {
  const uint32_t bytes = race.before.bytes() & race.now.bytes();
  uint32_t value = 0;
  for (uint32_t i = 0; i < kWord; ++i) {
    if ((bytes >> i & 1) != 0) value |= uint32_t(*reinterpret_cast<const uint8_t*>(race.at + i)) << 8 * i;
  }
  return value;
}

void Races::compare_rewrites() {
  for (const Rewrite& rewrite : rewrites_) {
    if (value_of(rewrite.race) != rewrite.value) report(rewrite.race);
  }
  rewrites_.clear();
}

void Races::report(const Race& race) {
  const auto& [before, now, access, wrote, at] = race;
  if (!reported_.insert({before.code, now.code}).second) return;
  const std::string earlier = source_of(code_ + before.code);
  const std::string later = source_of(code_ + now.code);
  if (is_harmless(earlier, later)) return;
  found_ = true;
  const char* does = access == Access::kRead ? "reads" : access == Access::kWrite ? "writes" : "changes";
  const Extent& grid = launch_->grid;
  const Extent& block = launch_->block;
  std::fprintf(stderr,
               "emulated GPU: a race in %s, %u blocks of %u threads:\n  thread %u of block %u %s %#zx\n%s"
               "  and thread %u of block %u, which nothing orders before it, %s it\n%s",
               launch_->name, grid.x * grid.y * grid.z, block.x * block.y * block.z, now.thread(), now.block, does,
               static_cast<size_t>(at), later.c_str(), before.thread(), before.block, wrote ? "wrote" : "read",
               earlier.c_str());
}

}  // namespace emulated
