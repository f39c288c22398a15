#include "client/call_context.h"

#include <string_view>

#include "absl/strings/str_cat.h"

namespace ithaca::client {
namespace {

constexpr char kLeaseMetadata[] = "ithaca-lease";
constexpr char kPlaneMetadata[] = "ithaca-plane";

}  // namespace

void PrepareContext(const std::string& token, absl::Time deadline,
                    grpc::ClientContext* context) {
  if (deadline != absl::InfiniteFuture()) {
    context->set_deadline(absl::ToChronoTime(deadline));
  }
  if (!token.empty()) {
    context->AddMetadata("authorization", absl::StrCat("Bearer ", token));
  }
}

void AddLease(const std::string& lease, grpc::ClientContext* context) {
  context->AddMetadata(kLeaseMetadata, lease);
}

Plane PlaneOf(const grpc::ClientContext& context, Plane otherwise) {
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto plane = trailing.find(kPlaneMetadata);
  if (plane == trailing.end()) return otherwise;
  return ParsePlane({plane->second.data(), plane->second.size()})
      .value_or(otherwise);
}

}  // namespace ithaca::client
