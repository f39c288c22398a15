#include "kernels/copy_task.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/layout.h"
#include "kernels/layout_cpu.h"
#include "kernels/task_list.h"

namespace ithaca::kernels {
namespace {

std::vector<CopyTask> TasksOf(const LayoutParams& params, const CopyJob& job) {
  std::vector<CopyTask> tasks;
  ForEachTask(params, job,
              [&](const CopyTask& task) { tasks.push_back(task); });
  return tasks;
}

// What a launch does: every vector of every tile, where the index math says.
// Counts how often each destination byte is written.
void Run(const std::vector<CopyTask>& tasks, const char* dst_base,
         std::vector<int>& writes) {
  TaskList<CopyTask> list;
  for (const CopyTask& task : tasks)
    list.Add(task, task.num_tiles(), task.writes_apart());

  list.Arrange();
  for (uint32_t tile = 0; tile < list.num_tiles; ++tile) {
    const auto place = list.Find(tile);
    if (!place.exists) continue;
    const CopyTask& task = list.tasks[place.task];
    const uint32_t first = place.tile * kVectorsPerTile;
    for (uint32_t i = first; i < first + kVectorsPerTile; ++i) {
      if (i >= task.num_vectors) continue;
      const VectorOffsets at = LocateVector(task, task.vector_bytes, i);
      const char* src = task.src + at.src;
      char* dst = task.dst + at.dst;
      EXPECT_EQ(reinterpret_cast<uint64_t>(src) % task.vector_bytes, 0u);
      EXPECT_EQ(reinterpret_cast<uint64_t>(dst) % task.vector_bytes, 0u);
      std::memcpy(dst, src, task.vector_bytes);
      for (uint32_t b = 0; b < task.vector_bytes; ++b) {
        ++writes[dst + b - dst_base];
      }
    }
  }
}

struct Case {
  int64_t batch, tokens, heads, head_dim;
  int64_t src_extra,
      dst_extra;  // elements between one token's row and the next
  int64_t src_first, dst_first;  // elements before the block
};

void CheckAgainstCpu(DataType dtype, const Case& c) {
  const int64_t size = ByteSize(dtype);
  const int64_t run = c.heads * c.head_dim;
  const int64_t src_token = run + c.src_extra;
  const int64_t dst_token = run + c.dst_extra;
  std::vector<char> src((c.src_first + c.batch * c.tokens * src_token) * size);
  for (size_t i = 0; i < src.size(); ++i) {
    src[i] = static_cast<char>((i * 2654435761u) >> 13);
  }
  std::vector<char> expected(
      (c.dst_first + c.batch * c.tokens * dst_token) * size, 0x55);
  std::vector<char> dst = expected;
  LayoutParams params;
  params.dtype = dtype;
  params.head_dim = c.head_dim;
  CopyJob job;
  job.src = {src.data() + c.src_first * size, src_token, c.tokens * src_token};
  job.dst = {expected.data() + c.dst_first * size, dst_token,
             c.tokens * dst_token};
  job.batch = c.batch;
  job.tokens = c.tokens;
  job.heads = c.heads;
  CopyHeadsCpu(params, {&job, 1});

  job.dst.base = dst.data() + c.dst_first * size;
  std::vector<int> writes(dst.size(), 0);
  Run(TasksOf(params, job), dst.data(), writes);
  EXPECT_EQ(dst, expected);
  int64_t written = 0;
  for (const int count : writes) {
    EXPECT_LE(count, 1);
    written += count;
  }
  EXPECT_EQ(written, c.batch * c.tokens * run * size);
}

TEST(CopyTaskTest, TilesCoverEveryElementOnce) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    for (const int64_t head_dim : {1, 7, 33, 64, 100, 128}) {
      for (const int64_t heads : {1, 3}) {
        for (const int64_t tokens : {1, 29}) {
          for (const int64_t batch : {1, 2}) {
            for (const int64_t extra : {int64_t{0}, head_dim}) {
              for (const int64_t first : {int64_t{0}, int64_t{1}, head_dim}) {
                CheckAgainstCpu(dtype, {batch, tokens, heads, head_dim, extra,
                                        0, first, 0});
                CheckAgainstCpu(dtype, {batch, tokens, heads, head_dim, 0,
                                        extra, 0, first});
                CheckAgainstCpu(dtype, {batch, tokens, heads, head_dim, extra,
                                        extra, first, first});
              }
            }
          }
        }
      }
    }
  }
}

// Addresses that are never followed.
CopyJob FarJob(int64_t batch, int64_t tokens, int64_t heads, int64_t head_dim) {
  CopyJob job;
  job.src = {std::bit_cast<const void*>(uint64_t{1} << 40),
             2 * heads * head_dim, 2 * tokens * heads * head_dim};
  job.dst = {std::bit_cast<void*>(uint64_t{1} << 50), heads * head_dim,
             tokens * heads * head_dim};
  job.batch = batch;
  job.tokens = tokens;
  job.heads = heads;
  return job;
}

LayoutParams BFloat16(int64_t head_dim) {
  LayoutParams params;
  params.dtype = DataType::kBFloat16;
  params.head_dim = head_dim;
  return params;
}

TEST(CopyTaskTest, TakesTheWidestVectorThatFits) {
  const auto width = [](int64_t head_dim, int64_t heads, int64_t src_offset) {
    CopyJob job = FarJob(1, 5, heads, head_dim);
    job.src.base = static_cast<const char*>(job.src.base) + src_offset;
    return TasksOf(BFloat16(head_dim), job)[0].vector_bytes;
  };
  EXPECT_EQ(width(128, 3, 0), 16u);
  EXPECT_EQ(width(72, 1, 0), 16u);
  EXPECT_EQ(width(100, 1, 0), 8u);
  EXPECT_EQ(width(100, 2, 0), 16u);
  EXPECT_EQ(width(2, 1, 0), 4u);
  EXPECT_EQ(width(33, 1, 0), 2u);
  EXPECT_EQ(width(128, 3, 8), 8u);
  EXPECT_EQ(width(128, 3, 2), 2u);
}

TEST(CopyTaskTest, AStrideThatNoRowUsesDoesNotNarrow) {
  CopyJob job = FarJob(1, 1, 1, 64);
  job.src.token_stride = 65;
  job.dst.batch_stride = 1;
  EXPECT_EQ(TasksOf(BFloat16(64), job)[0].vector_bytes, 16u);
}

TEST(CopyTaskTest, KnowsWhetherItWritesBetweenOthersHeads) {
  CopyJob job = FarJob(2, 5, 3, 64);
  EXPECT_FALSE(TasksOf(BFloat16(64), job)[0].writes_apart());
  job.src.token_stride *= 2;
  EXPECT_FALSE(TasksOf(BFloat16(64), job)[0].writes_apart());
  job.dst.token_stride *= 2;
  EXPECT_TRUE(TasksOf(BFloat16(64), job)[0].writes_apart());
  job.tokens = 1;
  EXPECT_FALSE(TasksOf(BFloat16(64), job)[0].writes_apart());
}

TEST(CopyTaskTest, EmptyJobsHaveNoTask) {
  EXPECT_TRUE(TasksOf(BFloat16(64), FarJob(0, 5, 3, 64)).empty());
  EXPECT_TRUE(TasksOf(BFloat16(64), FarJob(2, 0, 3, 64)).empty());
  EXPECT_TRUE(TasksOf(BFloat16(64), FarJob(2, 5, 0, 64)).empty());
}

TEST(CopyTaskTest, OffsetsArePast32Bits) {
  // The last token and head of [99866, 3 * 56, 128] with the value part alone
  // taken: element 2147504127 is past what 31 bits count.
  constexpr int64_t kRun = int64_t{56} * 128;
  CopyJob job = FarJob(1, 99866, 56, 128);
  job.src.token_stride = 3 * kRun;
  const auto tasks = TasksOf(BFloat16(128), job);
  ASSERT_EQ(tasks.size(), 1u);
  const CopyTask& task = tasks[0];
  const VectorOffsets last = LocateVector(task, 16, task.num_vectors - 1);
  EXPECT_EQ(last.src, (kRun * 3 * 99865 + kRun) * 2 - 16);
  EXPECT_EQ(last.dst, kRun * 99866 * 2 - 16);
  EXPECT_GT(last.src / 2, int64_t{2147483647});
}

TEST(CopyTaskTest, HugeJobsAreCutIntoPartsThatCoverThem) {
  const struct {
    int64_t batch, tokens, heads, head_dim;
  } cases[] = {{3, 100000, 56, 128},           // each batch element fits
               {2, 1000000, 40, 128},          // tokens are cut
               {1, 3, int64_t{1} << 25, 128},  // heads are cut
               {5, 1, 1, 1}};
  for (const auto& c : cases) {
    const CopyJob job = FarJob(c.batch, c.tokens, c.heads, c.head_dim);
    int64_t bytes = 0;
    const auto* end = static_cast<const char*>(job.dst.base);
    for (const CopyTask& task : TasksOf(BFloat16(c.head_dim), job)) {
      EXPECT_LT(task.num_vectors, uint32_t{1} << 31);
      EXPECT_EQ(task.dst, end);  // dense: parts follow each other
      bytes += int64_t{task.num_vectors} * task.vector_bytes;
      end = task.dst + int64_t{task.num_vectors} * task.vector_bytes;
      const VectorOffsets last =
          LocateVector(task, task.vector_bytes, task.num_vectors - 1);
      EXPECT_EQ(task.dst + last.dst + task.vector_bytes, end);
    }
    EXPECT_EQ(bytes, c.batch * c.tokens * c.heads * c.head_dim * 2);
  }
}

}  // namespace
}  // namespace ithaca::kernels
