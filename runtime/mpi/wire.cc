#include "runtime/mpi/wire.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ir/diagnostic.h"
#include "runtime/mpi/patience.h"

namespace shardc::mpi {
namespace {

constexpr size_t kSpares = 64, kWorthRecycling = 4096;
constexpr int kNoteTag = 0, kFirstContentsTag = 1;
constexpr int kNoGroup = -1;  // notes between all processes

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
    // Where processes are more than processors, mpirun makes Open MPI yield in every poll that
    // finds nothing, and on a busy machine each of these lasts a time slice. Patience does better.
    setenv("OMPI_MCA_mpi_yield_when_idle", "0", 0);
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

void Wire::Post(int peer, int group, Channel channel, Parcel note) {
  const Address address{group, channel};
  const size_t at = note.size();
  note.resize(at + sizeof(address));
  std::memcpy(note.data() + at, &address, sizeof(address));
  std::lock_guard lock(mutex_);
  SendLocked(peer, kNoteTag, std::move(note), nullptr);
}

const Parcel* Wire::Front(int peer, int group, Channel channel) {
  std::lock_guard lock(mutex_);
  auto box = notes_.find({group, channel, peer});
  return box == notes_.end() ? nullptr : &box->second.front();
}

Parcel Wire::Take(int peer, int group, Channel channel) {
  std::lock_guard lock(mutex_);
  auto box = notes_.find({group, channel, peer});
  SHARDC_CHECK(box != notes_.end());
  Parcel note = std::move(box->second.front());
  box->second.pop_front();
  if (box->second.empty()) notes_.erase(box);
  return note;
}

void Wire::Retire(int group, const std::vector<int>& peers) {
  std::lock_guard lock(mutex_);
  std::vector<int> there;
  for (int peer : peers) {
    if (!notes_.contains({group, Channel::kLeaves, peer})) there.push_back(peer);
  }
  std::erase_if(notes_, [group](const auto& entry) { return entry.first.group == group; });
  if (!there.empty()) retired_[group] = std::move(there);
}

void Wire::TakeIn() {
  for (;;) {
    if (note_.request == MPI_REQUEST_NULL) {
      int found = 0, bytes = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      Check(MPI_Improbe(MPI_ANY_SOURCE, kNoteTag, comm_, &found, &message, &status), rank_,
            "MPI_Improbe");
      if (!found) return;
      note_peer_ = status.MPI_SOURCE;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      note_.parcel = MakeLocked(static_cast<size_t>(bytes));
      Check(MPI_Imrecv(note_.parcel.data(), bytes, MPI_BYTE, &message, &note_.request), note_peer_,
            "MPI_Imrecv");
    }
    int done = 0;
    Check(MPI_Test(&note_.request, &done, MPI_STATUS_IGNORE), note_peer_, "MPI_Test");
    if (!done) return;
    Sort(note_peer_, std::move(note_.parcel));
  }
}

void Wire::Sort(int peer, Parcel note) {
  Address address;
  SHARDC_CHECK(note.size() >= sizeof(address), "a message is too short");
  std::memcpy(&address, note.data() + note.size() - sizeof(address), sizeof(address));
  note.resize(note.size() - sizeof(address));
  auto retired = retired_.find(address.group);
  if (retired == retired_.end()) {
    notes_[{address.group, address.channel, peer}].push_back(std::move(note));
    return;
  }
  if (address.channel == Channel::kLeaves) std::erase(retired->second, peer);
  if (retired->second.empty()) retired_.erase(retired);
  RecycleLocked(std::move(note));
}

void Wire::Send(int peer, int tag, Parcel parcel,
                const std::shared_ptr<std::atomic<int>>& outstanding) {
  std::lock_guard lock(mutex_);
  SendLocked(peer, kFirstContentsTag + tag, std::move(parcel), outstanding);
}

void Wire::SendLocked(int peer, int mpi_tag, Parcel parcel,
                      const std::shared_ptr<std::atomic<int>>& outstanding) {
  SHARDC_CHECK(parcel.size() <= INT_MAX);
  Flight& flight =
      flights_.emplace_back(Flight{std::move(parcel), MPI_REQUEST_NULL, peer, outstanding});
  if (outstanding) ++*outstanding;
  Check(MPI_Isend(flight.parcel.data(), static_cast<int>(flight.parcel.size()), MPI_BYTE, peer,
                  mpi_tag, comm_, &flight.request),
        peer, "MPI_Isend");
}

std::optional<Parcel> Wire::Receive(int peer, int tag, std::unique_ptr<Arrival>& arrival) {
  std::lock_guard lock(mutex_);
  if (!arrival) {
    int found = 0, bytes = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    Check(MPI_Improbe(peer, kFirstContentsTag + tag, comm_, &found, &message, &status), peer,
          "MPI_Improbe");
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
  if (spare_.size() < kSpares && parcel.capacity() >= kWorthRecycling) {
    spare_.push_back(std::move(parcel));
  }
}

Parcel Wire::Make(size_t bytes) {
  std::lock_guard lock(mutex_);
  return MakeLocked(bytes);
}

Parcel Wire::MakeLocked(size_t bytes) {
  if (bytes < kWorthRecycling) return Parcel(bytes);
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
  TakeIn();
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
  const auto* text = reinterpret_cast<const std::byte*>(mine.data());
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) {
      Post(peer, kNoGroup, Channel::kCalls, Parcel(text, text + mine.size()));
    }
  }
  std::vector<std::string> all;
  Patience patience(crowded_);
  while (all.size() < static_cast<size_t>(size_)) {
    const int peer = static_cast<int>(all.size());
    if (peer == rank_) {
      all.push_back(mine);
    } else if (Front(peer, kNoGroup, Channel::kCalls)) {
      const Parcel note = Take(peer, kNoGroup, Channel::kCalls);
      all.emplace_back(reinterpret_cast<const char*>(note.data()), note.size());
      patience.Reset();
    } else {
      patience.Rest();
      Progress();
    }
  }
  return all;
}

void Wire::Finalize() { MPI_Finalize(); }

}  // namespace shardc::mpi
