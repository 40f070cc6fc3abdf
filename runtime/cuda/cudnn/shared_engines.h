// Engines for attention, each made once for all kernels that need the same one: a library may
// compile one for a second or so, and the layers of a model are alike.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/cuda/cudnn/attention_library.h"

namespace shardc::cuda {

class SharedEngines {
 public:
  using Make = std::function<AttentionEngine*(std::string* why_not)>;
  // The engine of a stream in use under `key`, or the one that `make` gives; null, with the reason,
  // where that gave none, now or before. `key` names all that the engine depends on but the stream.
  std::shared_ptr<AttentionEngine> Get(const std::string& key, CUstream_st* stream,
                                       const Make& make, std::string* why_not) {
    std::lock_guard lock(mutex_);
    Entry& entry = entries_[{stream, key}];
    std::shared_ptr<AttentionEngine> engine = entry.engine.lock();
    if (!engine && entry.refusal.empty()) {
      engine.reset(make(&entry.refusal));
      entry.engine = engine;
    }
    *why_not = entry.refusal;
    return engine;
  }

 private:
  struct Entry {
    std::weak_ptr<AttentionEngine> engine;
    std::string refusal;
  };
  std::mutex mutex_;
  std::map<std::pair<CUstream_st*, std::string>, Entry> entries_;
};

}  // namespace shardc::cuda
