"""Operations that models are made of: norms, rotary embeddings, merged linear layers."""
