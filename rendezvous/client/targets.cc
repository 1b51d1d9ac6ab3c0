#include "rendezvous/client/targets.h"

#include <algorithm>

namespace ddprun {

bool Targets::add(Target target) {
  const bool is_known = std::ranges::find(all_, target.address, &Target::address) != all_.end();
  if (is_known || all_.size() >= kMost) return false;
  all_.push_back(std::move(target));
  return true;
}

void Targets::spread() {
  const Target first = all_.front();
  for (const auto& one : first.endpoints) {
    if (one == first.endpoints.front() || one.protocol() != first.endpoints.front().protocol()) {
      continue;
    }
    add({.address = {one.address().to_string(), one.port()},
         .name = first.address.host,
         .endpoints = {one}});
  }
  if (first.has_address()) all_.front().endpoints.resize(1);
}

Ending Targets::summary() const {
  const Target* best = nullptr;
  const Target* worst = nullptr;
  for (const Target& one : all_) {
    if (!one.ending) continue;
    if (!best || one.ending->how < best->ending->how) best = &one;
    if (!worst || one.ending->how > worst->ending->how) worst = &one;
  }
  if (!best) return {Ending::How::kBroken, "no service answered"};
  if (all_.size() == 1) return *best->ending;
  return {best->ending->how, to_text(worst->address) + ": " + worst->ending->why};
}

}  // namespace ddprun
