#include "worker/library_version.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;

TEST(LibraryVersionTest, PrintsAsTheLibrariesNumberThemselves) {
  EXPECT_EQ(CudaVersionString(13000), "13.0");
  EXPECT_EQ(CudaVersionString(12090), "12.9");
  EXPECT_EQ(NcclVersionString(22809), "2.28.9");
  EXPECT_EQ(NcclVersionString(22912), "2.29.12");
}

TEST(LibraryVersionTest, SameAndNewerAreTaken) {
  EXPECT_TRUE(CheckCudaVersion("CUDA driver", 13000, 13000).ok());
  EXPECT_TRUE(CheckCudaVersion("CUDA driver", 13000, 13010).ok());
  EXPECT_TRUE(CheckNcclVersion(22809, 22809).ok());
  EXPECT_TRUE(CheckNcclVersion(22809, 30000).ok());
}

TEST(LibraryVersionTest, OlderIsRefusedAndBothVersionsNamed) {
  const absl::Status driver = CheckCudaVersion("CUDA driver", 13000, 12080);
  EXPECT_EQ(driver.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(driver.message()),
      AllOf(HasSubstr("CUDA driver"), HasSubstr("12.8"), HasSubstr("13.0")));

  const absl::Status nccl = CheckNcclVersion(22809, 22705);
  EXPECT_EQ(nccl.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(nccl.message()),
      AllOf(HasSubstr("NCCL"), HasSubstr("2.27.5"), HasSubstr("2.28.9")));
}

}  // namespace
}  // namespace ithaca
