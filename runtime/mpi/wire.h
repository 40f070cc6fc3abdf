// Messages between processes over MPI. Every call returns at once; memory of messages belongs to
// the wire until MPI has done with it, so that a caller may give up on a message at any time.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <list>
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

  // Messages to one peer arrive in order. `outstanding` (may be null) is one more until the message
  // is out; only read it between calls of the same thread.
  void Send(int peer, int tag, Parcel parcel,
            const std::shared_ptr<std::atomic<int>>& outstanding = nullptr);
  // Moves on the receiving of the next message; returns it when it is complete. `arrival` keeps its
  // state between calls; use the same one until a message came.
  std::optional<Parcel> Receive(int peer, int tag, std::unique_ptr<Arrival>& arrival);
  // Takes over a receive that nobody waits for any more.
  void Abandon(std::unique_ptr<Arrival> arrival);
  // Recycles memory of an arrived message.
  void Recycle(Parcel parcel);
  // A parcel with this size, whose memory is recycled where possible.
  Parcel Make(size_t bytes);
  // Moves sends on.
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
  void Reap();
  Parcel MakeLocked(size_t bytes);
  void RecycleLocked(Parcel parcel);

  std::mutex mutex_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, local_rank_ = 0;
  bool crowded_ = false;
  std::list<Flight> flights_;
  std::list<std::unique_ptr<Arrival>> abandoned_;
  std::vector<Parcel> spare_;
};

}  // namespace shardc::mpi
