// Tests proofs and tokens.
#include "rendezvous/auth/core/proof.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

constexpr const char* kKey = "0123456789abcdef";
constexpr const char* kOtherKey = "fedcba9876543210";

// The digests were computed with Python's hmac module over the text that proof.cc describes.
TEST(Proof, IsAnHmacOverEverythingThatWasSaid) {
  const Introduction introduction{1, "0.1", "job", "aa", "bb"};
  EXPECT_EQ(proof_of(Side::kAgent, kKey, introduction),
            "b30c793983b3aa3f34b816810e2c63373ab54bb32e1d9612fd17ac9b12e6a3e7");
  EXPECT_EQ(proof_of(Side::kService, kKey, introduction),
            "014dd169b58276be1cc16d6181b9cd489d9c94de14e25bdfb79accbc781bcf72");
  EXPECT_EQ(read_token_of(kKey),
            "8a65facf5b325d079f0d071ee3c365b0f6e8ac5e7dc39fc83af52f2bd6832d39");
}

TEST(Proof, AReadCookieIsOfOneKeyAndEnds) {
  const std::string cookie = read_cookie_of(kKey, 1000);
  EXPECT_TRUE(is_read_cookie(cookie, kKey, 999));
  EXPECT_FALSE(is_read_cookie(cookie, kKey, 1000)) << "it has ended";
  EXPECT_FALSE(is_read_cookie(cookie, "another key of 16 bytes", 999));
  EXPECT_FALSE(is_read_cookie("2" + cookie.substr(1), kKey, 999)) << "its end was changed";
  EXPECT_FALSE(is_read_cookie("0" + cookie, kKey, 999)) << "it has one form";
  EXPECT_FALSE(is_read_cookie(read_token_of(kKey), kKey, 999));
  for (const char* text : {"", "-", "1000", "1000-", "-1000", "99999999999999999999-a"}) {
    EXPECT_FALSE(is_read_cookie(text, kKey, 0)) << text;
  }
}

TEST(Proof, WhatOpensTheButtonsIsNotWhatOpensThePages) {
  EXPECT_NE(write_token_of(kKey), read_token_of(kKey));
  EXPECT_NE(write_token_of(kKey), write_token_of(kOtherKey));
  const std::string cookie = write_cookie_of(kKey, 1000);
  EXPECT_TRUE(is_write_cookie(cookie, kKey, 999));
  EXPECT_FALSE(is_write_cookie(cookie, kKey, 1000)) << "it has ended";
  EXPECT_FALSE(is_write_cookie(cookie, kOtherKey, 999));
  EXPECT_FALSE(is_write_cookie("2000" + cookie.substr(4), kKey, 999)) << "the time is sealed";
  EXPECT_FALSE(is_write_cookie(read_cookie_of(kKey, 1000), kKey, 999));
  EXPECT_FALSE(is_read_cookie(cookie, kKey, 999));
}

TEST(Proof, DiffersWithEveryPartOfIt) {
  const Introduction first{1, "0.1", "job", "aa", "bb"};
  std::vector<Introduction> others(6, first);
  others[0].protocol = 2;
  others[1].version = "0.2";
  others[2].job = "jo";
  others[3].agent_nonce = "aab";  // the border between two fields counts, too
  others[3].service_nonce = "b";
  others[4].service_nonce = "ba";
  others[5].channel = "x";
  const std::string proof = proof_of(Side::kAgent, kKey, first);
  for (const Introduction& other : others) EXPECT_NE(proof_of(Side::kAgent, kKey, other), proof);
  EXPECT_NE(proof_of(Side::kAgent, kOtherKey, first), proof);
}

TEST(Proof, WhatMungeSealsIsADigestOfTheSameAndOfThePurpose) {
  const Introduction first{1, "0.1", "job", "aa", "bb"};
  EXPECT_EQ(statement_of(Side::kAgent, first),
            "a6ae72effcab42572d35c23bd961db94aced58b0ed2bcf22c8d9805b62d50fb3");
  Introduction other = first;
  other.service_nonce = "ba";
  EXPECT_NE(statement_of(Side::kAgent, other), statement_of(Side::kAgent, first));
  EXPECT_NE(statement_of(Side::kService, first), statement_of(Side::kAgent, first));
}

TEST(Proof, SecretsAreComparedWhole) {
  EXPECT_TRUE(is_same_secret("abc", "abc"));
  EXPECT_FALSE(is_same_secret("abc", "abd"));
  EXPECT_FALSE(is_same_secret("abc", "ab"));
  EXPECT_TRUE(is_same_secret("", ""));
}

}  // namespace
}  // namespace ddprun
