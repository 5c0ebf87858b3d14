"""The smallest Llama of the tests; others are copies of it with changes."""

from everytoken.models import LlamaParameters

LLAMA = LlamaParameters(
    family="llama",
    d_model=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    d_ff=24,
    tied_embeddings=True,
    rope_theta=10000.0,
    norm_eps=1e-5,
    init_std=0.02,
)
