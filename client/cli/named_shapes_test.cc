#include "client/cli/named_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace ithaca::client {
namespace {

using ::testing::ElementsAre;

TEST(NamedShapesTest, FluxIsFlux) {
  const NamedShape* flux = FindNamedShape("flux");
  ASSERT_NE(flux, nullptr);
  const CallShape shape = flux->Shape();
  EXPECT_THAT(shape.QueryShape(), ElementsAre(1, 4608, 24, 128));
  EXPECT_THAT(shape.KeyShape(), ElementsAre(1, 4608, 24, 128));
  EXPECT_EQ(shape.Layout().text_tokens(), 512);
  EXPECT_EQ(shape.Text(),
            "4096 image + 512 text tokens, 24 heads, head dim 128, bfloat16");
}

TEST(NamedShapesTest, NamesAreUniqueAndShapesAreCalls) {
  std::set<std::string_view> names;
  for (const NamedShape& shape : NamedShapes()) {
    EXPECT_TRUE(names.insert(shape.name).second) << shape.name;
    EXPECT_EQ(FindNamedShape(shape.name), &shape);
    EXPECT_GT(shape.image_tokens, 0);
    EXPECT_GE(shape.text_tokens, 0);
    EXPECT_GT(shape.num_heads, 0);
    EXPECT_GE(shape.head_dim, 1);
    EXPECT_LE(shape.head_dim, 256);
  }
  for (const char* name : {"flux", "sd3.5", "wan480", "wan720", "h3", "hunyuan",
                           "tiny", "small"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

TEST(NamedShapesTest, UnknownNameIsNull) {
  EXPECT_EQ(FindNamedShape("fluxx"), nullptr);
}

TEST(NamedShapesTest, ImageQueriesLeaveTextOutOfTheQuery) {
  CallShape shape = FindNamedShape("tiny")->Shape();
  shape.image_queries_only = true;
  shape.num_kv_heads = 2;
  EXPECT_THAT(shape.QueryShape(), ElementsAre(1, 16, 4, 8));
  EXPECT_THAT(shape.KeyShape(), ElementsAre(1, 20, 2, 8));
  EXPECT_TRUE(shape.Layout().image_queries_only());
}

}  // namespace
}  // namespace ithaca::client
