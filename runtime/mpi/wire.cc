#include "runtime/mpi/wire.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "ir/diagnostic.h"

namespace shardc::mpi {
namespace {

constexpr size_t kSpares = 64;

void Check(int code, int peer, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw WireError(peer, StrCat(call, ": ", text));
}

}  // namespace

Wire::Wire() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (!initialized) {
    int provided = 0;
    Check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), 0, "MPI_Init");
    SHARDC_CHECK(provided >= MPI_THREAD_SERIALIZED, "this MPI cannot be used from threads");
  }
  // A communicator of our own: its messages cannot meet those of others, its errors are ours.
  Check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), 0, "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  MPI_Comm here = MPI_COMM_NULL;
  int neighbours = 1;
  Check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here), 0,
        "MPI_Comm_split_type");
  MPI_Comm_size(here, &neighbours);
  MPI_Comm_rank(here, &local_rank_);
  MPI_Comm_free(&here);
  crowded_ = neighbours > get_nprocs();
}

Wire::~Wire() = default;

void Wire::Send(int peer, int tag, Parcel parcel,
                const std::shared_ptr<std::atomic<int>>& outstanding) {
  std::lock_guard lock(mutex_);
  SHARDC_CHECK(parcel.size() <= INT_MAX);
  Flight& flight =
      flights_.emplace_back(Flight{std::move(parcel), MPI_REQUEST_NULL, peer, outstanding});
  if (outstanding) ++*outstanding;
  Check(MPI_Isend(flight.parcel.data(), static_cast<int>(flight.parcel.size()), MPI_BYTE, peer, tag,
                  comm_, &flight.request),
        peer, "MPI_Isend");
}

std::optional<Parcel> Wire::Receive(int peer, int tag, std::unique_ptr<Arrival>& arrival) {
  std::lock_guard lock(mutex_);
  if (!arrival) {
    int found = 0, bytes = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    Check(MPI_Improbe(peer, tag, comm_, &found, &message, &status), peer, "MPI_Improbe");
    if (!found) return std::nullopt;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    arrival = std::make_unique<Arrival>();
    arrival->parcel = MakeLocked(static_cast<size_t>(bytes));
    Check(MPI_Imrecv(arrival->parcel.data(), bytes, MPI_BYTE, &message, &arrival->request), peer,
          "MPI_Imrecv");
  }
  int done = 0;
  Check(MPI_Test(&arrival->request, &done, MPI_STATUS_IGNORE), peer, "MPI_Test");
  if (!done) return std::nullopt;
  Parcel parcel = std::move(arrival->parcel);
  arrival.reset();
  return parcel;
}

void Wire::Abandon(std::unique_ptr<Arrival> arrival) {
  if (!arrival) return;
  std::lock_guard lock(mutex_);
  abandoned_.push_back(std::move(arrival));
}

void Wire::Recycle(Parcel parcel) {
  std::lock_guard lock(mutex_);
  RecycleLocked(std::move(parcel));
}

void Wire::RecycleLocked(Parcel parcel) {
  if (spare_.size() < kSpares) spare_.push_back(std::move(parcel));
}

Parcel Wire::Make(size_t bytes) {
  std::lock_guard lock(mutex_);
  return MakeLocked(bytes);
}

Parcel Wire::MakeLocked(size_t bytes) {
  // The newest one is the one that is most likely in the cache.
  for (size_t i = spare_.size(); i-- > 0;) {
    if (spare_[i].capacity() < bytes) continue;
    Parcel parcel = std::move(spare_[i]);
    spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
    parcel.resize(bytes);
    return parcel;
  }
  return Parcel(bytes);
}

void Wire::Progress() {
  std::lock_guard lock(mutex_);
  Reap();
}

void Wire::Reap() {
  for (auto it = flights_.begin(); it != flights_.end();) {
    int done = 0;
    Check(MPI_Test(&it->request, &done, MPI_STATUS_IGNORE), it->peer, "MPI_Test");
    if (!done) {
      ++it;
      continue;
    }
    if (it->outstanding) --*it->outstanding;
    RecycleLocked(std::move(it->parcel));
    it = flights_.erase(it);
  }
  std::erase_if(abandoned_, [](const std::unique_ptr<Arrival>& arrival) {
    int done = 0;
    return MPI_Test(&arrival->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done;
  });
}

std::vector<std::string> Wire::AllGather(const std::string& mine) {
  std::lock_guard lock(mutex_);
  int bytes = static_cast<int>(mine.size());
  std::vector<int> sizes(static_cast<size_t>(size_)), starts(static_cast<size_t>(size_));
  Check(MPI_Allgather(&bytes, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm_), rank_, "MPI_Allgather");
  int total = 0;
  for (size_t r = 0; r < sizes.size(); ++r) {
    starts[r] = total;
    total += sizes[r];
  }
  std::string all(static_cast<size_t>(total), '\0');
  Check(MPI_Allgatherv(mine.data(), bytes, MPI_BYTE, all.data(), sizes.data(), starts.data(),
                       MPI_BYTE, comm_),
        rank_, "MPI_Allgatherv");
  std::vector<std::string> out;
  for (size_t r = 0; r < sizes.size(); ++r) {
    out.push_back(all.substr(static_cast<size_t>(starts[r]), static_cast<size_t>(sizes[r])));
  }
  return out;
}

void Wire::Finalize() { MPI_Finalize(); }

}  // namespace shardc::mpi
