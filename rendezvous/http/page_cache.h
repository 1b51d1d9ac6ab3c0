// PageCache: keeps a page for kPause times as long as it took to make it. Clients that ask
// without pause thus use at most a twentieth of the thread. Clients that ask rarely get a
// current page: a page that takes a millisecond to make is at most 20 ms old.
//
// Pure: the times are arguments. One owner thread.
#pragma once

#include <optional>
#include <utility>

#include "base/clock.h"
#include "rendezvous/http/exchange.h"

namespace ddprun {

class PageCache {
 public:
  static constexpr int kPause = 20;  // times the time that making the page took

  // Returns the page if it need not be made again yet, else null.
  const HttpPage* find(TimePoint now) const { return page_ && now < until_ ? &*page_ : nullptr; }

  void keep(HttpPage page, TimePoint begun, TimePoint done) {
    page_ = std::move(page);
    until_ = done + kPause * (done - begun);
  }

 private:
  std::optional<HttpPage> page_;
  TimePoint until_;
};

}  // namespace ddprun
