// The Diagnostic that an action throws. Other exceptions pass.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ir/diagnostic.h"

namespace shardc::testing {

inline std::optional<Diagnostic> ThrownIfAny(const std::function<void()>& action) {
  try {
    action();
  } catch (const Diagnostic& d) {
    return d;
  }
  return std::nullopt;
}

// A failure when there is none.
inline Diagnostic Thrown(const std::function<void()>& action) {
  if (std::optional<Diagnostic> d = ThrownIfAny(action)) return *d;
  ADD_FAILURE() << "nothing was thrown";
  return Diagnostic("none", ExitCode::kOk, "", "");
}

// All that a user would read of it, but on one line: "id where: what; what to do"; or "none".
inline std::string TextThrownBy(const std::function<void()>& action) {
  const std::optional<Diagnostic> d = ThrownIfAny(action);
  return d ? d->id() + " " + d->where() + ": " + d->message() + "; " + d->fix() : "none";
}

// Its id, or "none".
inline std::string IdThrownBy(const std::function<void()>& action) {
  const std::optional<Diagnostic> d = ThrownIfAny(action);
  return d ? d->id() : "none";
}

// That there is one with this id, and that where, what or what to do hold the text.
inline void ExpectThrown(const std::function<void()>& action, std::string_view id,
                         std::string_view text) {
  const Diagnostic d = Thrown(action);
  EXPECT_EQ(d.id(), id) << d.what();
  const std::string all = d.where() + ": " + d.message() + "; " + d.fix();
  EXPECT_NE(all.find(text), std::string::npos) << all;
}

}  // namespace shardc::testing
