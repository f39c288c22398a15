#include "kernels/row_task.h"

#include <bit>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/layout.h"

namespace ithaca::kernels {
namespace {

// Addresses that are never followed.
constexpr uint64_t kElements = uint64_t{1} << 40;
constexpr uint64_t kCodes = uint64_t{1} << 50;
constexpr uint64_t kScales = uint64_t{1} << 52;

QuantizeJob Job(int64_t batch, int64_t tokens, int64_t heads, int64_t head_dim,
                int64_t heads_of_tensor) {
  QuantizeJob job;
  const int64_t token_stride = heads_of_tensor * head_dim;
  job.src = {std::bit_cast<const void*>(kElements), token_stride,
             (tokens + 3) * token_stride};
  job.payload = std::bit_cast<uint8_t*>(kCodes);
  job.scales = std::bit_cast<float*>(kScales);
  job.batch = batch;
  job.tokens = tokens;
  job.heads = heads;
  return job;
}

LayoutParams Params(DataType dtype, int64_t head_dim) {
  LayoutParams params;
  params.dtype = dtype;
  params.head_dim = head_dim;
  params.precision = CommunicationPrecision::kFp8E4m3;
  return params;
}

std::vector<RowTask> TasksOf(const LayoutParams& params,
                             const QuantizeJob& job) {
  std::vector<RowTask> tasks;
  ForEachTask(params, job, [&](const RowTask& task) { tasks.push_back(task); });
  return tasks;
}

TEST(RowTaskTest, LocatesEveryRow) {
  for (const int64_t batch : {1, 3}) {
    for (const int64_t tokens : {1, 7}) {
      for (const int64_t heads : {1, 5}) {
        constexpr int64_t kHeadDim = 72;
        const QuantizeJob job = Job(batch, tokens, heads, kHeadDim, 9);
        const auto tasks = TasksOf(Params(DataType::kBFloat16, kHeadDim), job);
        ASSERT_EQ(tasks.size(), 1u);
        EXPECT_EQ(tasks[0].num_rows, batch * tokens * heads);
        uint32_t row = 0;
        for (int64_t b = 0; b < batch; ++b) {
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t h = 0; h < heads; ++h, ++row) {
              EXPECT_EQ(LocateRow(tasks[0], kHeadDim * 2, row),
                        2 * (b * job.src.batch_stride +
                             t * job.src.token_stride + h * kHeadDim));
            }
          }
        }
      }
    }
  }
}

TEST(RowTaskTest, BothDirectionsAreAlike) {
  const QuantizeJob quantize = Job(2, 5, 3, 64, 3);
  DequantizeJob dequantize;
  dequantize.dst = {const_cast<void*>(quantize.src.base),
                    quantize.src.token_stride, quantize.src.batch_stride};
  dequantize.payload = quantize.payload;
  dequantize.scales = quantize.scales;
  dequantize.batch = 2;
  dequantize.tokens = 5;
  dequantize.heads = 3;
  const auto params = Params(DataType::kFloat16, 64);
  const RowTask there = TasksOf(params, quantize)[0];
  ForEachTask(params, dequantize, [&](const RowTask& back) {
    EXPECT_EQ(back.elements, there.elements);
    EXPECT_EQ(back.codes, there.codes);
    EXPECT_EQ(back.scales, there.scales);
    EXPECT_EQ(back.num_rows, there.num_rows);
    EXPECT_EQ(back.token_stride, there.token_stride);
    EXPECT_EQ(back.batch_stride, there.batch_stride);
  });
}

TEST(RowTaskTest, IsWideWhereEveryRowIsAlignedVectors) {
  const auto wide = [](DataType dtype, int64_t head_dim, int64_t elements_off,
                       int64_t codes_off) {
    QuantizeJob job = Job(1, 4, 2, head_dim, 3);
    job.src.base = static_cast<const char*>(job.src.base) + elements_off;
    job.payload += codes_off;
    return TasksOf(Params(dtype, head_dim), job)[0].wide;
  };
  for (const int64_t head_dim : {8, 40, 64, 72, 80, 96, 128, 160, 256}) {
    EXPECT_TRUE(wide(DataType::kBFloat16, head_dim, 0, 0)) << head_dim;
    EXPECT_TRUE(wide(DataType::kFloat32, head_dim, 0, 0)) << head_dim;
  }
  EXPECT_TRUE(wide(DataType::kFloat32, 100, 0, 0));
  EXPECT_FALSE(wide(DataType::kBFloat16, 100, 0, 0));
  EXPECT_FALSE(wide(DataType::kBFloat16, 1, 0, 0));
  EXPECT_FALSE(wide(DataType::kBFloat16, 128, 2, 0));
  EXPECT_FALSE(wide(DataType::kBFloat16, 128, 0, 4));
  EXPECT_TRUE(wide(DataType::kFloat32, 128, 0, 4));
}

TEST(RowTaskTest, KnowsWhetherOthersHeadsLieBetweenItsRows) {
  const auto apart = [](int64_t tokens, int64_t heads,
                        int64_t heads_of_tensor) {
    return TasksOf(Params(DataType::kBFloat16, 64),
                   Job(1, tokens, heads, 64, heads_of_tensor))[0]
        .rows_apart;
  };
  EXPECT_TRUE(apart(5, 2, 6));
  EXPECT_FALSE(apart(5, 6, 6));
  EXPECT_FALSE(apart(1, 2, 6));
}

TEST(RowTaskTest, GeometryCoversEveryRowLength) {
  for (int64_t vectors = 1; vectors <= 64; ++vectors) {
    const RowGeometry geometry = WideGeometry(vectors);
    EXPECT_GE(geometry.lanes * geometry.vectors, vectors);
    EXPECT_LE(geometry.vectors, 2);
    EXPECT_LT(geometry.lanes * (geometry.vectors - 1), vectors);
    EXPECT_EQ(kThreadsPerBlock % geometry.lanes, 0);
  }
  EXPECT_EQ(WideGeometry(16), (RowGeometry{8, 2, 1}));  // bfloat16, D = 128
  EXPECT_EQ(WideGeometry(8), (RowGeometry{4, 2, 1}));   // bfloat16, D = 64
  EXPECT_EQ(WideGeometry(16).rows_per_tile(), 32);
  EXPECT_EQ(WideGeometry(1).rows_per_tile(), 128);
  EXPECT_EQ(RowGeometry().rows_per_tile(), 8);
}

TEST(RowTaskTest, HugeJobsAreCutIntoPartsThatCoverThem) {
  const struct {
    int64_t batch, tokens, heads, head_dim;
  } cases[] = {{3, 100000, 56, 128},
               {2, 1000000, 40, 128},
               {1, 3, int64_t{1} << 25, 128},
               {2, 0, 3, 64}};
  for (const auto& c : cases) {
    const QuantizeJob job =
        Job(c.batch, c.tokens, c.heads, c.head_dim, c.heads);
    int64_t rows = 0;
    for (const RowTask& task :
         TasksOf(Params(DataType::kBFloat16, c.head_dim), job)) {
      EXPECT_LT(task.num_rows, uint32_t{1} << 31);
      // The 8-bit side is dense: the next part begins where this one ended.
      EXPECT_EQ(reinterpret_cast<uint64_t>(task.codes),
                kCodes + rows * c.head_dim);
      EXPECT_EQ(reinterpret_cast<uint64_t>(task.scales), kScales + rows * 4);
      // The tensor side is where the part's first row is.
      const int64_t h = rows % c.heads;
      const int64_t t = rows / c.heads % c.tokens;
      const int64_t b = rows / c.heads / c.tokens;
      EXPECT_EQ(reinterpret_cast<uint64_t>(task.elements) - kElements,
                2u * (b * job.src.batch_stride + t * job.src.token_stride +
                      h * c.head_dim));
      rows += task.num_rows;
    }
    EXPECT_EQ(rows, c.batch * c.tokens * c.heads);
  }
}

}  // namespace
}  // namespace ithaca::kernels
