from engine.model.attention_cost import Shape, costs_us


def test_both_ways_are_measured() -> None:
    shape = Shape(num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8)
    assert min(costs_us(batch=3, context=40, shape=shape, num_rounds=2)) > 0
