// Messages between processes over MPI. Every call but those that say so returns at once; memory of
// messages belongs to the wire until MPI has done with it, so that a caller may give up on a
// message at any time.
//
// Notes are small and expected by nobody in particular: the wire takes in whatever has come, so
// that MPI never holds more than a few, and sorts them by group and channel. All of them have one
// tag, so MPI keeps the order of everything that one process says to another: who sees a note has
// all that were posted before it. Contents are larger, have a tag of their own, and wait in MPI
// until they are asked for.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace shardc::mpi {

using Parcel = std::vector<std::byte>;

// MPI reported an error, in dealing with `peer`.
class WireError : public std::runtime_error {
 public:
  WireError(int peer, const std::string& what) : std::runtime_error(what), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

// What the notes of a group are for. A leave is the last note that a process sends to a group.
enum class Channel : int32_t { kCalls, kEnvelopes, kAccepts, kLeaves };

// A receive that was begun and not finished.
struct Arrival {
  Parcel parcel;
  MPI_Request request = MPI_REQUEST_NULL;
};

// One per process, for all threads: calls into MPI are made one at a time.
class Wire {
 public:
  // Initialises MPI. Collective over all processes.
  Wire();
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // on this machine
  // Whether this machine has fewer processors for us than processes.
  bool crowded() const { return crowded_; }

  void Post(int peer, int group, Channel channel, Parcel note);
  // The oldest note that was not taken, of those that Progress has found; or null.
  const Parcel* Front(int peer, int group, Channel channel);
  Parcel Take(int peer, int group, Channel channel);
  // This process is done with the group, whose other processes are `peers`: their notes are
  // dropped, also those that are still to come.
  void Retire(int group, const std::vector<int>& peers);

  // Contents with the same tag (>= 0) arrive in order. `outstanding` is one more until the message
  // is out.
  void Send(int peer, int tag, Parcel parcel, const std::shared_ptr<std::atomic<int>>& outstanding);
  // Moves on the receiving of the next contents; returns them when they are complete. `arrival`
  // keeps its state between calls; use the same one until a message came.
  std::optional<Parcel> Receive(int peer, int tag, std::unique_ptr<Arrival>& arrival);
  // Takes over a receive that nobody waits for any more.
  void Abandon(std::unique_ptr<Arrival> arrival);
  // Recycles memory of an arrived message.
  void Recycle(Parcel parcel);
  // A parcel with this size, whose memory is recycled where possible.
  Parcel Make(size_t bytes);
  // Takes in notes and moves sends on.
  void Progress();

  // Everybody's value, by rank. Collective and blocking.
  std::vector<std::string> AllGather(const std::string& mine);
  void Finalize();

 private:
  struct Flight {
    Parcel parcel;
    MPI_Request request;
    int peer;
    std::shared_ptr<std::atomic<int>> outstanding;
  };
  // Of a note, sent behind its text.
  struct Address {
    int32_t group;
    Channel channel;
  };
  struct Box {
    int group;
    Channel channel;
    int peer;
    auto operator<=>(const Box&) const = default;
  };
  void SendLocked(int peer, int mpi_tag, Parcel parcel,
                  const std::shared_ptr<std::atomic<int>>& outstanding);
  void TakeIn();
  void Sort(int peer, Parcel note);
  void Reap();
  Parcel MakeLocked(size_t bytes);
  void RecycleLocked(Parcel parcel);

  std::mutex mutex_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, local_rank_ = 0;
  bool crowded_ = false;
  std::map<Box, std::deque<Parcel>> notes_;
  Arrival note_;  // one at a time, so that none overtakes another
  int note_peer_ = -1;
  std::map<int, std::vector<int>> retired_;  // groups, and who has not left them yet
  std::list<Flight> flights_;
  std::list<std::unique_ptr<Arrival>> abandoned_;
  std::vector<Parcel> spare_;
};

}  // namespace shardc::mpi
