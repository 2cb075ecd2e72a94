"""`specbench analyze`: the measurements that a method rests on, taken here."""
