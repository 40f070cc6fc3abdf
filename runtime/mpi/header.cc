#include "runtime/mpi/header.h"

#include <cstring>

#include "ir/diagnostic.h"

namespace shardc::mpi {
namespace {

struct Fixed {
  int32_t kind, op, root, color, key, next_id, buffers, unused;
};
struct Amount {
  int64_t count;
  int64_t dtype;
};
static_assert(sizeof(Fixed) % 8 == 0 && sizeof(Amount) == kEnvelopeBytes);

template <typename T>
void Put(Parcel& parcel, size_t at, const T& value) {
  std::memcpy(parcel.data() + at, &value, sizeof(T));
}
template <typename T>
T Get(const Parcel& parcel, size_t at) {
  SHARDC_CHECK(at + sizeof(T) <= parcel.size(), "a message is too short");
  T value;
  std::memcpy(&value, parcel.data() + at, sizeof(T));
  return value;
}

}  // namespace

Parcel Encode(const Announcement& a) {
  Parcel parcel(sizeof(Fixed) + a.call.buffers.size() * sizeof(Amount));
  Put(parcel, 0,
      Fixed{static_cast<int32_t>(a.call.kind), static_cast<int32_t>(a.call.op), a.call.root,
            a.call.color, a.call.key, a.next_id, static_cast<int32_t>(a.call.buffers.size()), 0});
  size_t at = sizeof(Fixed);
  for (const Buffers& b : a.call.buffers) {
    Put(parcel, at, Amount{b.count, static_cast<int64_t>(b.dtype)});
    at += sizeof(Amount);
  }
  return parcel;
}

Announcement DecodeAnnouncement(const Parcel& parcel) {
  const auto fixed = Get<Fixed>(parcel, 0);
  Announcement a;
  a.call.kind = static_cast<in_process::CallKind>(fixed.kind);
  a.call.op = static_cast<ReduceOp>(fixed.op);
  a.call.root = fixed.root;
  a.call.color = fixed.color;
  a.call.key = fixed.key;
  a.next_id = fixed.next_id;
  a.payload = sizeof(Fixed);
  for (int32_t i = 0; i < fixed.buffers; ++i) {
    const auto amount = Get<Amount>(parcel, a.payload);
    a.call.buffers.push_back({nullptr, nullptr, amount.count, static_cast<DType>(amount.dtype)});
    a.payload += sizeof(Amount);
  }
  return a;
}

Parcel Encode(const Envelope& envelope) {
  Parcel parcel(sizeof(Amount));
  Put(parcel, 0, Amount{envelope.count, static_cast<int64_t>(envelope.dtype)});
  return parcel;
}

Envelope DecodeEnvelope(const Parcel& parcel) {
  const auto amount = Get<Amount>(parcel, 0);
  return {amount.count, static_cast<DType>(amount.dtype)};
}

}  // namespace shardc::mpi
