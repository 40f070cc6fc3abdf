// What ranks tell each other at the start of a call: who calls what, and small contents at once.
#pragma once

#include <cstdint>

#include "runtime/in_process/call.h"
#include "runtime/mpi/wire.h"

namespace shardc::mpi {

// Contents up to this size travel in the header's own message, which then fits in the smallest
// packet of MPI and needs no handshake.
inline constexpr int64_t kSmallBytes = 3072;

// Of a collective call.
struct Announcement {
  in_process::Call call;  // pointers are null after decoding
  int next_id = 0;        // the smallest group id that the rank has not used
  size_t payload = 0;     // where it begins in the parcel
};

Parcel Encode(const Announcement& announcement);
Announcement DecodeAnnouncement(const Parcel& parcel);

// Of one message of an Exchange.
struct Envelope {
  int64_t count = 0;
  DType dtype = DType::kF32;
};
inline constexpr size_t kEnvelopeBytes = 16;

Parcel Encode(const Envelope& envelope);
Envelope DecodeEnvelope(const Parcel& parcel);

}  // namespace shardc::mpi
