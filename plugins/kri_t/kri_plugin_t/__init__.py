"""KRI-T: score a block by how much the model's usual query, from where it will stand, wants it."""
