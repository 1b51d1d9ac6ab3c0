// HttpExchange: the HTTP/1.1 of one connection, without its socket. Bytes come in, answers come
// out; Boost.Beast parses and writes them (and is included by exchange.cc alone: its headers
// are heavy).
//
// What is understood is GET and HEAD without a body. A request has at most kMaxHeaderBytes and is
// looked at twice: when its first line is there, so that nonsense is answered at once, and when its
// header is complete. How the bytes were cut never matters. The last answer of a connection says
// `Connection: close`, and nothing is read after it: after a bad request, because what follows
// cannot be told from it, and after `max_requests`.
//
// One owner thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/net/core/byte_buffer.h"

namespace ddprun {

// Shared, because a large page may be on its way to many at once.
using HttpBody = std::shared_ptr<const std::string>;

inline HttpBody body_of(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

struct HttpPage {
  std::string type = "text/plain; charset=utf-8";
  HttpBody body;
  int status = 200;
};

// One line of text.
inline HttpPage text_page(const std::string& line, int status = 200) {
  return {.body = body_of(line + "\n"), .status = status};
}

struct HttpRequest {
  std::string_view path;           // without what follows a ?
  std::string_view authorization;  // that field's value; empty where there is none
  bool encrypted = false;          // nobody on the way has seen it, nor will see the answer
};

// The page that a request is about; nullopt: there is none.
using HttpPages = std::function<std::optional<HttpPage>(const HttpRequest& request)>;

struct HttpAnswer {
  std::string head;
  HttpBody body;  // null: none follows the head
  int status = 0;
  bool last = false;  // the connection is to be closed when it has been sent
};

class HttpExchange {
 public:
  static constexpr std::size_t kMaxHeaderBytes = 8192;

  // REQUIRES: max_requests >= 1.
  HttpExchange(HttpPages pages, std::size_t max_requests)
      : pages_(std::move(pages)), requests_left_(max_requests) {}

  // REQUIRES: next() has answered what came before, and the last answer was not given.
  void append(std::string_view bytes) { buffer_.append(bytes); }
  // The answer to the next request; nullopt: more bytes are needed, or the last one was given.
  std::optional<HttpAnswer> next();
  // Whether a part of a request has come.
  bool has_begun() const { return !buffer_.empty(); }
  // Ends the exchange with this answer, whatever has come.
  HttpAnswer refuse(int status, const std::string& why);

  // Memory held for what has come.
  std::size_t capacity() const { return buffer_.capacity(); }

 private:
  HttpAnswer answer(std::string_view header);

  HttpPages pages_;
  std::size_t requests_left_;
  ByteBuffer buffer_;
  std::size_t searched_ = 0;  // bytes of the buffer in which no header ends
  bool begins_well_ = false;  // the first line of the request was looked at
  bool over_ = false;
};

}  // namespace ddprun
