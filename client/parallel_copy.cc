#include "client/parallel_copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

namespace ithaca::client {
namespace {

constexpr size_t kPieceBytes = size_t{2} << 20;
// A thread pays for its start from about this on.
constexpr size_t kBytesPerThread = size_t{8} << 20;
constexpr size_t kMaxThreads = 8;

}  // namespace

void CopyAll(const std::vector<Copy>& copies) {
  size_t total = 0;
  std::vector<Copy> pieces;
  for (const Copy& copy : copies) {
    total += copy.from.size();
    for (size_t at = 0; at < copy.from.size(); at += kPieceBytes) {
      const size_t size = std::min(kPieceBytes, copy.from.size() - at);
      pieces.push_back({copy.from.subspan(at, size), copy.to + at});
    }
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      std::memcpy(pieces[i].to, pieces[i].from.data(), pieces[i].from.size());
    }
  };
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const size_t num_threads =
      std::min({total / kBytesPerThread, cores, kMaxThreads});
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ithaca::client
