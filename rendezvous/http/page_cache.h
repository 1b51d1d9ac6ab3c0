// PageCache: a page is made again only when making it has become cheap against the time that has
// passed. So whoever asks for it without pause takes a twentieth of the thread at most, and who
// asks now and then gets what is true now: a page that takes a millisecond is 20 ms old at most.
//
// Pure: the times come in. One owner thread.
#pragma once

#include <optional>
#include <utility>

#include "base/clock.h"
#include "rendezvous/http/exchange.h"

namespace ddprun {

class PageCache {
 public:
  static constexpr int kPause = 20;  // times what making the page took

  // The page, where it need not be made again yet; else null.
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
